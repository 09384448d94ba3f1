"""Choose a job's handler: the newest of its kind, unless its steps started under an older version.

The handler version of a job's first checkpoint applies until the job finishes. A worker without that version releases
the job with a hold that names it, and a worker that has the version lifts the hold.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from keptwork.errors import StoreError
from keptwork.job import JobType
from keptwork.jobs.outcome import Release
from keptwork.store import Store

Older = Mapping[tuple[str, int], JobType]
"""Handlers that are no longer the newest of their kind, by name and version."""

NONE_OLDER: Older = {}
LIFT_SECONDS, SELDOM_SECONDS = 1.0, 10.0


class Handlers:
    """The handlers of one worker."""

    def __init__(self, kinds: Mapping[str, JobType], older: Older = NONE_OLDER) -> None:
        self._newest = kinds
        self._older = older

    def __iter__(self) -> Iterator[JobType]:
        yield from self._newest.values()
        yield from self._older.values()

    @property
    def names(self) -> Collection[str]:
        """The kinds of jobs that have a handler."""
        return self._newest.keys()

    def newest(self, name: str) -> JobType | None:
        """Return the handler of a job that has not started, or None."""
        return self._newest.get(name)

    def of_version(self, name: str, version: int) -> JobType | Release:
        """Return the handler for a job that started under this version, or a release that holds the job."""
        newest = self._newest[name]
        found = newest if newest.version == version else self._older.get((name, version))
        return found or held_for(name, version, [kind.version for kind in self if kind.name == name])

    @property
    def versioned(self) -> bool:
        """Whether any handler has a version."""
        return any(kind.version for kind in self)

    @property
    def holds(self) -> list[str]:
        """The holds that need not last while these handlers are here."""
        return [hold_name(kind.name, kind.version) for kind in self]


class Lifter:
    """Lifts the holds of jobs that other workers released because they lacked a handler that is here.

    A worker without versions checks too, but less often: a worker with newer handlers leaves it the jobs that started
    before there were versions.
    """

    def __init__(self, store: Store, handlers: Handlers, lifted: Callable[[], None]) -> None:
        self._store = store
        self._holds = handlers.holds
        self._pause = LIFT_SECONDS if handlers.versioned else SELDOM_SECONDS
        self._lifted = lifted

    async def run(self) -> None:
        while True:
            with contextlib.suppress(StoreError):  # unreachable: they wait a little longer
                await self.run_once()
            await asyncio.sleep(self._pause)

    async def run_once(self) -> None:
        if self._holds and await self._store.lift_holds(self._holds):
            self._lifted()


def hold_name(kind: str, version: int) -> str:
    """Return the hold for jobs that need a handler of this version.

    >>> hold_name("fetch", 2)
    'version:fetch@2'
    """
    return f"version:{kind}@{version}"


def held_for(kind: str, version: int, here: Iterable[int]) -> Release:
    """Return a release that holds the job until a worker has that version of its handler."""
    known = " and ".join(_called(one) for one in sorted(here))
    how = f"name={kind!r}, version={version}" if version else f"name={kind!r}"
    reason = f"its steps were begun under {_called(version)} of {kind!r}, and this worker has {known}; "
    return Release(f"{reason}it waits for a worker that has @app.job({how}) as well", held_by=hold_name(kind, version))


def _called(version: int) -> str:
    return f"version {version}" if version else "the handler without a version"

"""Which handler a job runs under: the newest of its kind, unless its steps were begun under an older one.

The version of a job's first checkpoint is the version it runs to its end under. A worker without that handler puts the
job back, held by a name that says what is missing; whoever has the handler lifts the hold.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from keptwork.errors import StoreError
from keptwork.job_type import JobType
from keptwork.store import Store
from keptwork.worker.settlement import Release

Older = Mapping[tuple[str, int], JobType]
"""Handlers that are no longer the newest of their kind, by name and version."""

NONE_OLDER: Older = {}
LIFT_SECONDS, SELDOM_SECONDS = 1.0, 10.0


class Handlers:
    """Those of one worker."""

    def __init__(self, kinds: Mapping[str, JobType], older: Older = NONE_OLDER) -> None:
        self._newest = kinds
        self._older = older

    def __iter__(self) -> Iterator[JobType]:
        yield from self._newest.values()
        yield from self._older.values()

    @property
    def names(self) -> Collection[str]:
        """The kinds of jobs there are handlers for."""
        return self._newest.keys()

    def newest(self, name: str) -> JobType | None:
        """What a job runs under that has not begun yet."""
        return self._newest.get(name)

    def of_version(self, name: str, version: int) -> JobType | Release:
        """What a job runs under whose steps were begun under that version."""
        newest = self._newest[name]
        found = newest if newest.version == version else self._older.get((name, version))
        return found or held_for(name, version, [kind.version for kind in self if kind.name == name])

    @property
    def versioned(self) -> bool:
        """Whether any of them has a version."""
        return any(kind.version for kind in self)

    @property
    def holds(self) -> list[str]:
        """What must hold nobody while these handlers are here."""
        return [hold_name(kind.name, kind.version) for kind in self]


class Lifter:
    """Lets jobs go on that others put back for want of a handler that is here. A worker that knows of no versions looks
    as well, though more rarely: one with newer handlers leaves it the jobs that were begun before there were any."""

    def __init__(self, store: Store, handlers: Handlers, lifted: Callable[[], None]) -> None:
        self._store = store
        self._holds = handlers.holds
        self._pause = LIFT_SECONDS if handlers.versioned else SELDOM_SECONDS
        self._lifted = lifted

    async def run(self) -> None:
        while True:
            with contextlib.suppress(StoreError):  # out of reach: they wait a little longer
                await self.run_once()
            await asyncio.sleep(self._pause)

    async def run_once(self) -> None:
        if self._holds and await self._store.lift_holds(self._holds):
            self._lifted()


def hold_name(kind: str, version: int) -> str:
    """What holds the jobs that need a handler of that version.

    >>> hold_name("fetch", 2)
    'version:fetch@2'
    """
    return f"version:{kind}@{version}"


def held_for(kind: str, version: int, here: Iterable[int]) -> Release:
    """Puts a job back until somebody has that version of its handler."""
    known = " and ".join(_called(one) for one in sorted(here))
    how = f"name={kind!r}, version={version}" if version else f"name={kind!r}"
    reason = f"its steps were begun under {_called(version)} of {kind!r}, and this worker has {known}; "
    return Release(f"{reason}it waits for a worker that has @app.job({how}) as well", held_by=hold_name(kind, version))


def _called(version: int) -> str:
    return f"version {version}" if version else "the handler without a version"

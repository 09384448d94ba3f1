"""Store the artifacts of handlers, under the leases of their jobs."""

from __future__ import annotations

import asyncio
import mimetypes
import threading
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, Protocol

from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput, LeaseLost, StoreError
from keptwork.jobs.results_artifacts import LARGEST_ARTIFACT, check_media_type, check_name, check_size
from keptwork.store import Artifact, Blob, Job, Store

Content = bytes | str | Path

FIRST_PAUSE = 0.05
TEXT, BYTES = "text/plain; charset=utf-8", "application/octet-stream"


class Keeps(Protocol):
    """Storage for a handler's artifacts."""

    def keep(self, job: Job, name: str, data: Content, media_type: str | None) -> Awaitable[Artifact]: ...


class Shelf:
    """Artifact storage for all handlers of a worker. Create it on the thread of the worker's event loop."""

    def __init__(self, store: Store, holds: Callable[[Job], bool], pause: Callable[[float], Awaitable[float]]) -> None:
        self._store = store
        self._holds = holds
        self._pause = pause
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def keep(self, job: Job, name: str, data: Content, media_type: str | None) -> Awaitable[Artifact]:
        """Store an artifact. Await the result on the event loop; on another thread it is stored when this returns."""
        keeping = self._keep(job, name, data, media_type)
        if threading.get_ident() == self._thread:
            return keeping
        return Done(asyncio.run_coroutine_threadsafe(keeping, self._loop).result())

    async def _keep(self, job: Job, name: str, data: Content, media_type: str | None) -> Artifact:
        chosen = checked_type(name, data, media_type)
        if isinstance(data, Path):
            content = await asyncio.to_thread(content_of, name, data)
        else:
            content = content_of(name, data)
        blob = await asyncio.to_thread(Blob.of, content)
        return await self._keep_while_held(job, name, blob, chosen)

    async def _keep_while_held(self, job: Job, name: str, blob: Blob, media_type: str) -> Artifact:
        """Store the artifact, with retries while the lease lasts. Repeating the write changes nothing."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._store.keep_artifact(job, name, blob, media_type)
            except StoreError as outage:
                if not self._holds(job):
                    raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="keep") from outage
                pause = await self._pause(pause)


class Done:
    """A finished operation that can be awaited."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    def __await__(self) -> Generator[Any, None, Artifact]:
        yield from ()
        return self._artifact


def _usual_type(name: str, data: Content) -> str:
    guessed, encoding = mimetypes.guess_type(name)
    if guessed and not encoding:
        return guessed
    return TEXT if isinstance(data, str) else BYTES


def checked_type(name: str, data: Content, media_type: str | None) -> str:
    """Return the media type of an artifact. Raise `BadInput` for an invalid name or type."""
    check_name(name)
    chosen = media_type or _usual_type(name, data)
    check_media_type(chosen)
    return chosen


def content_of(name: str, data: Content) -> bytes:
    """Return the content as bytes. Raise `BadInput` if it is too large."""
    try:
        content = _of_file(name, data) if isinstance(data, Path) else _of_value(data)
    except (TypeError, UnicodeEncodeError) as error:
        raise BadInput(what=f"artifact {name!r}: give bytes, text or a Path; {error}") from None
    check_size(name, len(content))
    return content


def _of_value(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(memoryview(data))


def _of_file(name: str, path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise BadInput(what=f"artifact {name!r}: {path} is no ordinary file")
    check_size(name, path.stat().st_size)
    with path.open("rb") as file:
        return file.read(LARGEST_ARTIFACT + 1)

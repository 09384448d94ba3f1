"""Artifacts and checkpoints of a handler in its own process: every call is a request to the worker.

Each call returns only after the worker has replied. Nothing here waits on the event loop, although async functions
await it as they do in the worker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from keptwork.store import Artifact, Job
from keptwork.store.contract.checkpoints import Checkpoint, Save
from keptwork.workers.artifacts import Content, Done, checked_type, content_of
from keptwork.workers.isolation.rpc import PAGE, Line

T = TypeVar("T")


class DistantShelf:
    """Stores artifacts through the worker. In async functions too, `keep` has finished when it returns."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def keep(self, job: Job, name: str, data: Content, media_type: str | None) -> Done:
        chosen = checked_type(name, data, media_type)
        return Done(Artifact(*self._line.ask("keep", name, chosen, content=content_of(name, data))))


class DistantJournal:
    """Stores checkpoints through the worker."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @property
    def awaited(self) -> bool:
        """Whether the caller runs on an event loop, which in this process belongs to the handler."""
        return asyncio._get_running_loop() is not None

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(function)

    async def now(self) -> int:
        return int(self._line.ask("now"))

    async def recall(self, job: Job) -> list[Checkpoint]:
        found: list[Checkpoint] = []
        while page := self._line.ask("recall", len(found)):
            found += [Checkpoint(*one) for one in page]
            if len(page) < PAGE:
                break
        return found

    async def whole(self, job: Job, one: Checkpoint) -> str:
        return json.dumps(self._line.ask("whole", one.name))

    async def save(self, save: Save) -> str:
        """Store a checkpoint. The worker decides whether it is large enough to become a blob."""
        text = save.blob.content if save.blob is not None else save.result.encode()
        other = self._line.ask("save", save.name, save.code, content=text)
        return save.result if other is None else json.dumps(other[0])

    async def note_change(self, job: Job, name: str) -> None:
        self._line.ask("changed", name)

    def tell(self, job: Job, report: str) -> None:
        told = json.loads(report)
        self._line.ask("tell", told["fraction"], told["text"])

"""Where the results of steps go and come from: read when a job runs again, written under the lease it is held by.

Steps of many jobs end at the same time; while one batch of their results is being written the next one gathers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from keptwork.errors import LeaseLost, StoreError
from keptwork.lifecycle import JOB
from keptwork.service.blobs import content_of
from keptwork.store import Job, Store
from keptwork.store.checkpoints import Checkpoint, Save
from keptwork.worker.progress import Board
from keptwork.worker.threads import Threads

T = TypeVar("T")

FIRST_PAUSE = 0.05
LARGEST_BATCH = 500


class Journals(Protocol):
    """What the steps of a handler need of the world."""

    @property
    def awaited(self) -> bool:
        """Whether the caller is on the event loop, and awaits what it is given."""
        ...

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Does it for a caller that cannot await."""
        ...

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """What an ordinary function returns or raises, without holding up the event loop."""
        ...

    async def now(self) -> int:
        """The database's time."""
        ...

    async def recall(self, job: Job) -> list[Checkpoint]:
        """What the job's steps have left so far, in the order they did."""
        ...

    async def whole(self, job: Job, one: Checkpoint) -> str:
        """The result of a checkpoint that says only where it is kept."""
        ...

    async def save(self, save: Save) -> str:
        """Keeps the result of a step, and returns the one that stands. A job no longer held is `LeaseLost`."""
        ...

    async def note_change(self, job: Job, name: str) -> None:
        """The code of a step is no longer that which made its result."""
        ...

    def tell(self, job: Job, report: str) -> None:
        """How far the handler has come, from any thread and at once; what is out of reach hears nothing of it."""
        ...


class Journal:
    """One for all handlers of a worker. Made on the thread of the worker's event loop."""

    def __init__(
        self,
        store: Store,
        holds: Callable[[Job], bool],
        pause: Callable[[float], Awaitable[float]],
        threads: Threads,
    ) -> None:
        self._store = store
        self._holds = holds
        self._pause = pause
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: list[tuple[Save, asyncio.Future[str | None]]] = []
        self._writing: asyncio.Future[None] | None = None
        self.board = Board(store, self._loop)

    @property
    def awaited(self) -> bool:
        return threading.get_ident() == self._thread

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        value, error = await self._threads.call(_outcome, function)
        if error is not None:
            raise error
        return value

    async def now(self) -> int:
        return await self._store.now()

    async def recall(self, job: Job) -> list[Checkpoint]:
        return await self._while_held(job, lambda: self._store.checkpoints(job.tenant_id, job.id))

    async def whole(self, job: Job, one: Checkpoint) -> str:
        content = await self._while_held(job, lambda: content_of(self._store, job.tenant_id, str(one.hash)))
        return content.decode()

    def tell(self, job: Job, report: str) -> None:
        self.board.tell(job, report)

    async def save(self, save: Save) -> str:
        stands = await (self._save_alone(save) if self._writing is None else self._save_with_others(save))
        if stands is None:
            raise _lost(save.job)
        return stands

    async def _save_alone(self, save: Save) -> str | None:
        """Where nothing else is being written it goes at once. What comes meanwhile gathers for the next batch."""
        self._writing = self._loop.create_future()
        try:
            return (await self._kept([save]))[0]
        finally:
            self._writing = asyncio.create_task(self._write()) if self._waiting else None

    def _save_with_others(self, save: Save) -> asyncio.Future[str | None]:
        told: asyncio.Future[str | None] = self._loop.create_future()
        self._waiting.append((save, told))
        return told

    async def ask(self, job: Job, question: Callable[[Store], Awaitable[T]]) -> T:
        """Asks the store for a handler, as often as it takes while the job is held."""
        return await self._while_held(job, lambda: question(self._store))

    async def note_change(self, job: Job, name: str) -> None:
        await self._while_held(job, lambda: self._store.checkpoint_changed(job.tenant_id, job.id, name))

    async def _write(self) -> None:
        """One batch after the other, as long as there are any. Nobody who waits is forgotten, whatever happens."""
        batch: list[tuple[Save, asyncio.Future[str | None]]] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
                stands = await self._kept([save for save, _ in batch])
                for (_, told), result in zip(batch, stands, strict=True):
                    if not told.done():
                        told.set_result(result)
        except BaseException as error:
            for _, told in batch + self._waiting:
                if not told.done():
                    told.set_exception(error)
            self._waiting = []
            if not isinstance(error, Exception):
                raise
        finally:
            self._writing = None

    async def _kept(self, saves: list[Save]) -> list[str | None]:
        """As often as it takes while the leases last: the same result a second time changes nothing."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._store.checkpoint(saves)
            except StoreError as outage:
                if outage.lasting:
                    raise
                if not any(self._holds(save.job) for save in saves):
                    return [None] * len(saves)
                pause = await self._pause(pause)

    async def _while_held(self, job: Job, ask: Callable[[], Awaitable[T]]) -> T:
        pause = FIRST_PAUSE
        while True:
            try:
                return await ask()
            except StoreError as outage:
                if outage.lasting:
                    raise
                if not self._holds(job):
                    raise _lost(job) from outage
                pause = await self._pause(pause)


def _lost(job: Job) -> LeaseLost:
    return LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="checkpoint")


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """On a thread of its own. What is raised is returned: not every exception survives the way through a future."""
    try:
        return function(), None
    except BaseException as error:
        return None, error

"""Read the checkpoints of a job when it runs again, and write new ones under its lease.

Steps of many jobs finish at the same time. While one batch of checkpoints is written, the next batch is collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from keptwork.core.lifecycles import JOB
from keptwork.errors import LeaseLost, StoreError
from keptwork.jobs.outcome import plain
from keptwork.outcomes import PermanentError
from keptwork.store import Job, Store
from keptwork.store.contract.checkpoints import Checkpoint, Report, Save
from keptwork.store.contract.checkpoints_blob_service import content_of
from keptwork.workers.handlers import Threads

# Store the progress that handlers report. Progress is for display only and affects no job.
#
# However often handlers report, one write twice per second stores the latest report of each job.


EVERY_SECONDS = 0.5
KEPT_US = 7 * 86_400_000_000
LONGEST_WORDS = 200
DIGITS = 4


def report(fraction: Any, text: str) -> str:
    """Return a progress report in its stored form. Rounding accepts a sum slightly above 1.

    >>> report(0.1 + 0.2, "pages")
    '{"fraction":0.3,"text":"pages"}'
    """
    try:
        rounded = -1.0 if isinstance(fraction, bool) else round(float(fraction), DIGITS)
    except (TypeError, ValueError):
        rounded = -1.0
    if not 0 <= rounded <= 1:  # NaN fails this check too
        raise PermanentError(f"{fraction!r} is no progress; it is a fraction of the whole, from 0 to 1")
    return json.dumps({"fraction": rounded, "text": plain(str(text))[:LONGEST_WORDS]}, separators=(",", ":"))


class Board:
    """The latest reports of a worker's jobs that are not yet written."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._latest: dict[tuple[int, int], Report] = {}
        self._on_its_way: set[tuple[int, int]] = set()
        self._awake = False
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    def tell(self, job: Job, payload: str) -> None:
        """Accept a report from any thread. It is written soon, unless a later report replaces it."""
        self._latest[job.id, job.epoch] = Report(job, payload)
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # a thread that outlived its worker
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_now_and_then())

    async def _write_now_and_then(self) -> None:
        while self._latest:
            await self._write(list(self._latest))
            await asyncio.sleep(EVERY_SECONDS)
            self._awake = False  # first, so that a report after the next check wakes the writer again

    async def flush(self, jobs: Iterable[Job]) -> None:
        """Write the latest reports of these jobs, which are about to complete."""
        if self._latest or self._on_its_way:
            tokens = [(job.id, job.epoch) for job in jobs]
            if any(token in self._latest or token in self._on_its_way for token in tokens):
                await self._write(tokens)

    async def _write(self, tokens: list[tuple[int, int]]) -> None:
        """Write reports, one write at a time to keep their order. A report that cannot be written is dropped."""
        async with self._turn:
            reports = [told for token in tokens if (told := self._latest.pop(token, None)) is not None]
            if reports:
                self._on_its_way = {(told.job.id, told.job.epoch) for told in reports}
                with contextlib.suppress(StoreError):
                    await self._store.note_progress(reports, KEPT_US)
                self._on_its_way = set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


T = TypeVar("T")

FIRST_PAUSE = 0.05
LARGEST_BATCH = 500


class Journals(Protocol):
    """Storage for the steps of a handler."""

    @property
    def awaited(self) -> bool:
        """Whether the caller runs on the event loop and awaits the results."""
        ...

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine for a caller that cannot await."""
        ...

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Call an ordinary function without blocking the event loop."""
        ...

    async def now(self) -> int:
        """Return the database's time."""
        ...

    async def recall(self, job: Job) -> list[Checkpoint]:
        """Return the checkpoints of the job, in the order they were written."""
        ...

    async def whole(self, job: Job, one: Checkpoint) -> str:
        """Return the complete result of a checkpoint whose row holds only a blob's hash."""
        ...

    async def save(self, save: Save) -> str:
        """Store a checkpoint and return the result that is stored under its name.

        Raise `LeaseLost` if the job is no longer held.
        """
        ...

    async def note_change(self, job: Job, name: str) -> None:
        """Record that the code of a step has changed since its result was stored."""
        ...

    def tell(self, job: Job, report: str) -> None:
        """Report progress from any thread, without waiting. A report that cannot be written is lost."""
        ...


class Journal:
    """Checkpoint storage for all handlers of a worker. Create it on the thread of the worker's event loop."""

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
        """Write a checkpoint immediately, while no other write runs.

        Others that arrive meanwhile form the next batch.
        """
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
        """Query the store for a handler, with retries while the job is held."""
        return await self._while_held(job, lambda: question(self._store))

    async def note_change(self, job: Job, name: str) -> None:
        await self._while_held(job, lambda: self._store.checkpoint_changed(job.tenant_id, job.id, name))

    async def _write(self) -> None:
        """Write batches until the queue is empty.

        Whatever happens, every waiting caller gets a result or an exception.
        """
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
        """Write the checkpoints, with retries while a lease lasts. Repeating a write changes nothing."""
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
    """Call a function on its thread. Exceptions are returned, because a future cannot carry every exception."""
    try:
        return function(), None
    except BaseException as error:
        return None, error

"""A worker in this process: a visible pipeline of claim, run, settle, write.

    claim → inbox → slots → results → write
      ↑_________________________________|    room for more

Slots are tasks that live as long as the worker; a job costs no task of its own. While one batch of results is being
written the next one gathers, and while handlers run the next claim is under way. No transaction is open while a handler
runs. Where the database is out of reach, claims wait and results are kept until it is back.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from detent.errors import StoreError
from detent.job_type import JobType
from detent.store import Job, Store
from detent.worker.executor import Executor
from detent.worker.leases import LeaseKeeper
from detent.worker.reaper import Reaper
from detent.worker.registration import Registration
from detent.worker.settlement import Release, settle
from detent.worker.slot import Slot

POLL_SECONDS = 1.0
LARGEST_CLAIM = 500
PREFETCH_SECONDS = 0.05
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a worker works; times are microseconds."""

    queues: Sequence[str] = ("default",)
    concurrency: int = 32
    name: str = ""
    tenant_id: int | None = None
    lease_us: int = 60_000_000
    grace_us: int = 30_000_000


class Worker:
    """Claims jobs and runs them until it is asked to stop, or until there is nothing left to do."""

    def __init__(
        self,
        store: Store,
        kinds: Mapping[str, JobType],
        settings: Settings,
        open_store: Callable[[], Awaitable[Store]],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._settings = settings
        self._open_store = open_store
        self._chance = chance
        self._inbox: asyncio.Queue[Job] = asyncio.Queue()
        self._results: list[tuple[Job, Any]] = []
        self._in_hand = 0
        self._settled = 0
        self._rate = 0.0
        self._finished = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self, *, until_idle: bool = False) -> int:
        """Works; returns how many jobs it settled."""
        self._loop = asyncio.get_running_loop()
        self._registration = await Registration.register(self._store, self._settings.name)
        self._threads = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="detent-handler")
        executor = Executor(self._kinds, self._threads)
        self._slots = [Slot(self._inbox, executor, self._finish) for _ in range(self._settings.concurrency)]
        self._keeper = LeaseKeeper(self._open_store, self._registration.id, self._lose, self._ask_to_stop)
        self._keeper.start()
        duties = [asyncio.create_task(duty) for duty in (self._write(), Reaper(self._store).run())]
        try:
            await self._claim(until_idle)
            await self._drain()
        finally:
            await self._end(duties)
        return self._settled

    def stop(self) -> None:
        """Asks it to finish what it has begun, give back what it has not, and end."""
        self._stopping.set()
        self._changed.set()

    # --- claim

    async def _claim(self, until_idle: bool) -> None:
        while not self._stopping.is_set():
            room = min(self._room(), LARGEST_CLAIM)
            jobs = await self._claim_once(room) if room > 0 else []
            if jobs:
                self._in_hand += len(jobs)
                for job in jobs:
                    self._inbox.put_nowait(job)
            elif until_idle and not self._in_hand and room > 0:
                return
            else:
                await self._something_changed(POLL_SECONDS)

    async def _claim_once(self, limit: int) -> list[Job]:
        """A claim whose answer was lost is asked for again under the same number, so that no job is taken twice."""
        settings, number, again = self._settings, secrets.randbits(62), False
        pause = SHORTEST_PAUSE
        while True:
            sent = time.monotonic()
            try:
                jobs = await self._store.claim(
                    self._registration.id,
                    settings.queues,
                    limit,
                    settings.lease_us,
                    claim_id=number,
                    tenant_id=settings.tenant_id,
                    start=True,
                    again=again,
                )
                if jobs:
                    self._keeper.hold(jobs, settings.lease_us, sent)
                    await self._registration.started(self._store)
                return jobs
            except StoreError:
                again, pause = True, await self._pause(pause)

    def _room(self) -> int:
        """Free slots, and as many jobs ahead as have lately been done in a blink."""
        ahead = min(int(self._rate * PREFETCH_SECONDS), LARGEST_CLAIM)
        return self._settings.concurrency + ahead - self._in_hand

    async def _something_changed(self, seconds: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _pause(self, seconds: float) -> float:
        """Waits a little longer each time the database is out of reach."""
        await asyncio.sleep(seconds * (0.5 + self._chance() / 2))
        return min(seconds * 2, LONGEST_PAUSE)

    # --- run

    def _finish(self, job: Job, said: Any) -> None:
        self._results.append((job, said))
        self._finished.set()

    def _lose(self, ids: list[int]) -> None:
        """Called by the lease keeper's thread: these jobs are no longer ours, so their handlers are stopped."""
        self._loop.call_soon_threadsafe(self._stop_jobs, set(ids), True)

    def _ask_to_stop(self, ids: list[int]) -> None:
        """Called by the lease keeper's thread: somebody asked these jobs to come to an end by themselves."""
        self._loop.call_soon_threadsafe(self._stop_jobs, set(ids), False)

    def _stop_jobs(self, ids: set[int], hard: bool) -> None:
        for slot in self._slots:
            if slot.job is not None and slot.job.id in ids:
                slot.stop(hard=hard)

    # --- write

    async def _write(self) -> None:
        while True:
            await self._finished.wait()
            self._finished.clear()
            batch, self._results = self._results, []
            if batch:
                began = time.monotonic()
                await self._settle(batch)
                self._settled += len(batch)
                self._rate += (len(batch) / max(time.monotonic() - began, 1e-4) - self._rate) / 4
                self._in_hand -= len(batch)
                self._changed.set()

    async def _settle(self, batch: list[tuple[Job, Any]]) -> None:
        """Writes what came of the jobs, as often as it takes. What came too late has changed nothing: the job is
        another worker's by now."""
        actor = self._registration.actor
        changes = [settle(job, self._kinds.get(job.kind), said, self._chance, actor) for job, said in batch]
        changes.sort(key=lambda change: change.move.trigger)
        pause = SHORTEST_PAUSE
        while True:
            try:
                await self._store.apply(changes)
                break
            except StoreError:
                pause = await self._pause(pause)
        self._keeper.release([change.id for change in changes])

    # --- end

    async def _drain(self) -> None:
        """Waits for the handlers that run; what waits in the inbox goes back into the queue."""
        self._give_back()
        try:
            async with asyncio.timeout(self._settings.grace_us / 1_000_000):
                await self._all_settled()
        except TimeoutError:
            for slot in self._slots:
                slot.stop(hard=True)
            await self._all_settled()

    def _give_back(self) -> None:
        while not self._inbox.empty():
            self._finish(self._inbox.get_nowait(), Release())

    async def _all_settled(self) -> None:
        while self._in_hand:
            await self._something_changed(POLL_SECONDS)

    async def _end(self, duties: list[asyncio.Task[Any]]) -> None:
        for slot in self._slots:
            slot.close()
        for duty in duties:
            duty.cancel()
        await asyncio.gather(*duties, *(slot.task for slot in self._slots), return_exceptions=True)
        await asyncio.to_thread(self._keeper.stop)
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._registration.ended(self._store)

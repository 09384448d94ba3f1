"""A worker in this process: a visible pipeline of claim, run, settle, write.

    claim → inbox → slots → results → write
      ↑_________________________________|    room for more

Slots are tasks that live as long as the worker, and each job has a task of its own. While one batch of results is
written, the next batch is collected, and while handlers run, the next claim is in progress. No transaction is open
while a handler runs. While the database is unreachable, claims wait and results are retained
(maintenance/periodic.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from typing import Any

from keptwork.core import metrics
from keptwork.core.durations import size_text
from keptwork.core.lifecycles import Change
from keptwork.errors import BadInput, StoreError
from keptwork.flows.handover import Picture
from keptwork.flows.transaction import Seat
from keptwork.job import JobType
from keptwork.jobs import breakers, queries
from keptwork.jobs.complete import settle as settled
from keptwork.jobs.outcome import Raised, Release, described, due_soon, settle
from keptwork.maintenance.dead_workers import Watchman
from keptwork.maintenance.periodic import Outage
from keptwork.maintenance.retention import Pruner
from keptwork.maintenance.runner import Housekeeping, NoHousekeeping
from keptwork.observability import logs, spans
from keptwork.process.tool import Tools
from keptwork.store import Job, JobFilter, NewJob, Store
from keptwork.store.contract.jobs_list import LEASED
from keptwork.store.counters import flush, flushing
from keptwork.store.url import database_url
from keptwork.workers import process_exit
from keptwork.workers.artifacts import Shelf
from keptwork.workers.blocked_loop import Stall
from keptwork.workers.breaker_check import Gate
from keptwork.workers.checkpoint_writer import Journal
from keptwork.workers.claim_loop import Pace
from keptwork.workers.handler_call import Executor
from keptwork.workers.handler_timeout import Overrun
from keptwork.workers.handlers import NONE_OLDER, Handlers, Lifter, Older, Threads
from keptwork.workers.heartbeat import Descriptors, Doing, Heartbeat, Report, Strain, memory_bytes
from keptwork.workers.isolation.call import Isolation, check
from keptwork.workers.lease_renewer import LeaseKeeper, Pulse, Token
from keptwork.workers.registration import EXHAUSTED, Order, Registration, Settings
from keptwork.workers.shutdown import Departure, end_process, terminated
from keptwork.workers.slot import Slot
from keptwork.workers.waits import Desk

POLL_SECONDS = 1.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
END_SECONDS = 5.0
MOST_LOOKS = 5
MOST_LEASES = 1_000
DEFAULT_LEASE_US = 60_000_000

logger = logging.getLogger("keptwork")


class Worker:
    """Claims and runs jobs until a stop request, or until no work is left."""

    def __init__(
        self,
        store: Store,
        kinds: Mapping[str, JobType],
        settings: Settings,
        leases_store: Callable[[], AbstractAsyncContextManager[Store]],
        chance: Callable[[], float] = random.random,
        older: Older = NONE_OLDER,
        ended: Callable[[Sequence[Change]], None] = lambda changes: None,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._handlers = Handlers(kinds, older)
        self._tell_ended = ended
        self._settings = settings
        self._leases_store = leases_store
        self._chance = chance
        self._outage = Outage("server" if settings.remote else "database")
        self._lengths = {} if settings.lease_us else {kind.name: kind.lease_us for kind in kinds.values()}
        self._lease_us = settings.lease_us or min(self._lengths.values(), default=DEFAULT_LEASE_US)
        # Limits of other kinds are maintained too, but not at every notification.
        self._limited = any(kind.throttle is not None for kind in kinds.values())
        self._inbox: asyncio.Queue[Job] = asyncio.Queue()
        self._results: list[tuple[Job, Any]] = []
        self._pictures: dict[int, Picture] = {}
        self._in_hand = 0
        self._report = Report()
        self._pace = Pace(settings.concurrency)
        self._finished = asyncio.Event()
        self._changed = asyncio.Event()
        self._departure = Departure(settings.grace_us / 1_000_000)
        self._maybe_due = True
        self._looks = 0
        self._first_seen: dict[tuple[int, int], int] = {}
        self._slots: list[Slot] = []
        self._slots_replaced = 0
        self._left: set[asyncio.Task[None]] = set()
        self._overruns: list[tuple[Job, Overrun]] = []

    async def run(self, *, until_idle: bool = False) -> int:
        """Run the worker and return how many jobs it completed.

        An error in any of its tasks ends it as failed. If an operator or another process has terminated it,
        `WorkerTerminated` is raised.
        """
        check(self._handlers)
        self._check_memory()
        self._loop = asyncio.get_running_loop()
        self._registration = await self._register()
        place = logs.worker.set(self._registration.id)
        self._threads = Threads(self._stuck)
        self._isolation = Isolation(self._handlers, self._settings.database)
        self._tools = Tools()
        self._keeper = LeaseKeeper(
            self._leases_store,
            self._registration.id,
            self._lose,
            self._ask_to_stop,
            self._outage,
            self._pulse(),
            Stall(self._loop, self._running).look,
        )
        self._keeper.start()
        self._gate = Gate(self._store)
        executor = self._executor = Executor(
            *(self._gate, self._handlers, self._threads, self._isolation),
            *(self._note_overrun, self._give_time, self._give_up_once),
        )
        places = range(self._settings.concurrency)
        shelf = Shelf(self._store, self._keeper.holds, self._pause)
        journal = Journal(self._store, self._keeper.holds, self._pause, self._threads)
        desk = Desk(journal, self._kinds, self._tools, self._gate, self._settings.grace_us / 1_000_000)
        variables = copy_context()

        def new_slot() -> Slot:
            holds = self._keeper.holds
            return Slot(self._inbox, executor, holds, shelf, journal, desk, self._finish, variables, self._slot_vacant)

        self._new_slot = new_slot
        self._slots = [new_slot() for _ in places]
        self._board = journal.board
        self._house = self._housekeeping()
        duties = [asyncio.create_task(duty) for duty in (self._work(until_idle), self._write(), *self._chores())]
        stop_listening = self._store.listen(self._wake)
        failure: Exception | None = None
        try:
            with process_exit.guarded(self._loop):
                ended, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
            for duty in ended:
                duty.result()
        except Exception as error:
            failure = error
            raise
        finally:
            stop_listening()
            await self._end(duties, failure)
            logs.worker.reset(place)
        if untoward := self._departure.error(self._registration.id):
            raise untoward
        return self.doing().settled

    async def _register(self) -> Registration:
        given, bond = self._settings, self._settings.bond
        registration = await Registration.register(
            self._store,
            given.name,
            queues=given.queues,
            kinds=self._kinds,
            concurrency=given.concurrency,
            version=given.version,
            supervisor=None if bond is None else bond.name,
        )
        if bond is not None:
            bond.report(registration.id, database_url(given.database).text)
        return registration

    def _housekeeping(self) -> Housekeeping:
        if self._settings.remote:
            return NoHousekeeping()
        return Housekeeping(self._store, self._look_again, self._outage, self._chance)

    def _chores(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks that run during the work until they are cancelled.

        A worker with a server leaves shared maintenance to the server.
        """
        own = [self._beat(), self._bear(), Descriptors(self._give_up_once).run()]
        if self._settings.remote:
            return own
        return [*self._house.duties(), self._lift(), self._watch(), self._prune(), flushing(self._store), *own]

    def _check_memory(self) -> None:
        most, used = self._settings.most_memory, memory_bytes() or 0
        if most is not None and used >= most:
            has = f"it has {size_text(round(used, -6))} in use before its first job"
            raise BadInput(what=f"{size_text(most)} of memory are too little for this application: {has}")

    def _pulse(self) -> Pulse:
        resort = self._end_process if self._settings.own_process else None
        parent = None if self._settings.bond is None else self._settings.bond.pid
        return Pulse(self._registration.id, self._ordered, self._resumed, resort, parent)

    async def _work(self, until_idle: bool) -> None:
        await self._claim(until_idle)
        await self._drain()
        if until_idle:
            await self._house.deliver()

    async def _prune(self) -> None:
        await Pruner(self._store, self._settings.retention, self._chance).run()

    async def _lift(self) -> None:
        await Lifter(self._store, self._handlers, self._look_again).run()

    async def _beat(self) -> None:
        await Heartbeat(self._store, self._registration.id, self.doing).run()

    async def _watch(self) -> None:
        worker = self._registration
        await Watchman(self._store, self._settings.silent_us, worker.actor, worker.id).run()

    async def _bear(self) -> None:
        """Pause while too much memory is in use. Without a limit, never return."""
        if self._settings.most_memory is None:
            await asyncio.Event().wait()
        most = self._settings.most_memory or 0
        await Strain(most, self._pause_itself, self._resume_itself, lambda: bool(self._in_hand), self._give_up).run()

    async def _pause_itself(self, reason: str) -> None:
        await self._registration.pause(self._store, reason)
        self._give_back(f"{EXHAUSTED}: {reason}")

    async def _resume_itself(self) -> None:
        await self._registration.resume(self._store)
        self._look_again()

    def _give_up_once(self, what: str) -> None:
        if not self._departure.asked:
            logger.warning("this worker drains and ends: it %s", what)
            self._give_up(f"it {what}")

    def _give_up(self, what: str) -> None:
        self._departure.exhausted(what)
        self._changed.set()

    def works_on(self, tenant_id: int, job: int) -> bool:
        """Return whether a handler of this worker is running this job."""
        running = (slot.job for slot in self._slots)
        return any(one is not None and one.id == job and one.tenant_id == tenant_id for one in running)

    def doing(self) -> Doing:
        """Return the worker's current activity."""
        rate, outcomes = self._pace.per_second, dict(self._report.outcomes)
        return Doing(self._in_hand, self._settings.concurrency, outcomes, rate, self._slots_replaced)

    def stop(self) -> None:
        """Request a shutdown: finish running jobs within the grace period, release the others, and end."""
        self._departure.within_grace()
        self._changed.set()

    # --- orders

    def _ordered(self, order: Order) -> None:
        """Pass on an order to end, from the lease renewer's thread."""
        self._loop.call_soon_threadsafe(self._obey, order)

    def _resumed(self) -> None:
        """Resume claims, from the lease renewer's thread."""
        self._loop.call_soon_threadsafe(self._look_again)

    def _obey(self, order: Order) -> None:
        self._departure.obey(order)
        self._changed.set()

    async def _end_process(self, store: Store, order: Order) -> None:
        """End the process if the event loop has not obeyed a hard order. The lease renewer's thread calls this."""
        running = [slot.job for slot in self._slots if slot.job is not None]
        waiting = list(self._inbox._queue)  # type: ignore[attr-defined]  # the loop that owns it is stuck
        jobs = [job for job in (*running, *waiting) if self._keeper.holds(job)]
        await end_process(store, jobs, order, self._registration.actor, terminated(self._registration.id, order))

    def _wake(self) -> None:
        """Check for new jobs when the store notifies."""
        self._store.tally.add(metrics.WAKEUPS)
        self._look_again()
        if self._limited:
            self._house.new_jobs()

    def _look_again(self) -> None:
        """Claim again, because jobs might be due."""
        self._maybe_due = True
        self._changed.set()

    # --- claim

    async def _claim(self, until_idle: bool) -> None:
        while not self._departure.asked:
            self._changed.clear()
            # Read before the claim: a job that completes during the claim can have made another job due.
            idle = not self._in_hand
            room = self._pace.room(self._in_hand) if self._maybe_due or (until_idle and idle) else 0
            if room:
                self._maybe_due = False
            jobs = await self._claim_once(room) if room else []
            if room and len(jobs) == room:
                self._maybe_due = True  # there may be more; after a partial claim, there are none until a notification
            self._in_hand += len(jobs)
            for job in jobs:
                self._inbox.put_nowait(job)
            if jobs:
                await asyncio.sleep(0)  # handlers start before the next claim is sent
            self._looks = 0 if jobs else self._looks
            if until_idle and idle and not jobs and await self._nothing_let_go() and not await self._may_inherit():
                return
            if (len(jobs) < room or not room) and not await self._something_changed(POLL_SECONDS):
                self._maybe_due = True

    async def start_here(self, job: NewJob) -> int | None:
        """Enqueue a job and start it here, or return None if it should be enqueued normally.

        A job starts here if a slot is free and nothing was due at the last claim.
        """
        room = self._settings.concurrency - self._in_hand
        if room < 1 or self._maybe_due or self._departure.asked or not self._takes(job):
            return None
        self._in_hand += 1  # reserve its slot while the job is written
        made = None
        try:
            number, sent = secrets.randbits(62), time.monotonic()
            made = await self._store.enqueue_started(job, self._registration.id, self._lease_us, number)
            if made.owner == self._registration.id:
                self._keeper.hold([made], self._lease_us, sent, self._lengths)
                self._inbox.put_nowait(made)
                await self._registration.started(self._store)
        finally:
            if made is None or made.owner != self._registration.id:
                self._in_hand -= 1
                self._changed.set()
        return made.id

    def _takes(self, job: NewJob) -> bool:
        """Return whether a claim could give this job to this worker, and nothing holds the job."""
        free = not (job.key or job.delay_us or job.run_at or job.held_by or job.limit_key or job.tree_id)
        return free and job.kind in self._kinds and job.queue in self._settings.queues

    async def _nothing_let_go(self) -> bool:
        """Return whether no limit, breaker, budget, or timer has freed a job since the last claim.

        After `MOST_LOOKS` checks, moves that free no job are not waited for.
        """
        self._looks += 1
        if await self._house.look() and self._looks < MOST_LOOKS:
            self._changed.set()
        return not self._changed.is_set()

    async def _may_inherit(self) -> bool:
        """Return whether a worker that might be dead holds a job that this worker could run.

        That worker has not renewed its lease since this worker first saw it. The job is due when the lease expires.
        """
        if self._settings.remote:
            return False
        wanted, columns = (
            JobFilter(self._settings.tenant_id, states=LEASED),
            ("id", "epoch", "queue", "kind", "lease_until"),
        )
        try:
            rows = await self._store.jobs(wanted, limit=MOST_LEASES, columns=columns)
        except StoreError:
            return True  # the next claim reports it, and waits
        mine = [row for row in rows if row["queue"] in self._settings.queues and row["kind"] in self._kinds]
        leases = {(row["id"], row["epoch"]): row["lease_until"] for row in mine}
        self._first_seen = {lease: self._first_seen.get(lease, until) for lease, until in leases.items()}
        return any(until == self._first_seen[lease] for lease, until in leases.items())

    async def _claim_once(self, limit: int) -> list[Job]:
        """Claim jobs. If a response is lost, repeat the claim under its number, so that no job is claimed twice.

        The leases count from the first time that the claim was sent.
        """
        number, sent, again, pause = secrets.randbits(62), time.monotonic(), False, SHORTEST_PAUSE
        while True:
            try:
                jobs = await self._claim_under(number, limit, again)
                if jobs:
                    self._keeper.hold(jobs, self._lease_us, sent, self._lengths)
                    self._house.begun(jobs)
                    if spans.tracer is not None:
                        spans.claimed(jobs, self._registration.id, time.monotonic() - sent)
                    await self._registration.started(self._store)
                if jobs or not again:
                    self._outage.over("claim")
                    return jobs
                # The lost claim took nothing. That does not show that nothing is due, nor that the database accepts
                # writes.
                number, sent, again = secrets.randbits(62), time.monotonic(), False
            except StoreError as error:
                if self._departure.asked:
                    return []
                self._outage.endure("claim", error)
                again, pause = True, await self._pause(pause)

    async def _claim_under(self, number: int, limit: int, again: bool) -> list[Job]:
        return await self._claim_from(self._store, number, limit, again)

    async def _claim_from(self, store: Store, number: int, limit: int, again: bool) -> list[Job]:
        return await store.claim(
            self._registration.id,
            self._settings.queues,
            limit,
            self._lease_us,
            claim_id=number,
            tenant_id=self._settings.tenant_id,
            start=True,
            again=again,
            without=tuple(self._executor.unknown),
        )

    async def _something_changed(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._changed.wait()
        return False

    async def _pause(self, seconds: float) -> float:
        """Wait before a retry while the database is unreachable, and return the next, longer delay."""
        self._store.tally.add(metrics.OUTAGES)
        await asyncio.sleep(seconds * (0.5 + self._chance() / 2))
        return min(seconds * 2, LONGEST_PAUSE)

    # --- run

    def _finish(self, job: Job, said: Any) -> None:
        self._results.append((job, said))
        self._finished.set()

    def _running(self) -> dict[asyncio.Task[None], Job]:
        """Return the jobs by their tasks. The lease renewer's thread calls it too."""
        found = [(slot.work, slot.job) for slot in list(self._slots)]
        return {task: job for task, job in found if task is not None and job is not None}

    def _note_overrun(self, job: Job, overrun: Overrun) -> None:
        logger.warning("%s (%s) %s", job.public_id, job.kind, overrun.text, extra={"keptwork": logs.about(job)})
        if not self._settings.remote:
            self._overruns.append((job, overrun))

    def _slot_vacant(self, slot: Slot, error: BaseException | None) -> None:
        """Replace a slot that has died, or that was left to a handler that does not end."""
        if slot.job is not None:
            self._finish(slot.job, Raised(error or RuntimeError("its slot ended before it did")))
        self._slots_replaced += 1
        why = "its handler does not end" if error is None else described(error)
        logger.error("a slot of this worker was lost and is replaced (%d so far): %s", self._slots_replaced, why)
        self._slots[self._slots.index(slot)] = self._new_slot()
        if slot.left is not None and not slot.left.done():
            self._left.add(slot.left)
            slot.left.add_done_callback(self._left.discard)
            _disowned(slot.task)  # it waits for the handler
            self._stuck()

    def _give_time(self, job: Job, said: Raised) -> None:
        """Limit the time of a handler that was cancelled at its time-out."""
        for slot in self._slots_with({(job.id, job.epoch)}):
            slot.give_time_to_end(said)

    def _lose(self, tokens: set[Token]) -> None:
        """Stop the handlers of lost jobs, from the lease renewer's thread."""
        self._loop.call_soon_threadsafe(self._stop_jobs, tokens)

    def _ask_to_stop(self, tokens: set[Token]) -> None:
        """Request that the handlers of cancelled jobs stop, from the lease renewer's thread."""
        self._loop.call_soon_threadsafe(self._cancel_jobs, tokens)

    def _stop_jobs(self, tokens: set[Token]) -> None:
        for slot in self._slots_with(tokens):
            slot.stop(hard=True)

    def _cancel_jobs(self, tokens: set[Token]) -> None:
        for slot in self._slots_with(tokens):
            slot.cancel(self._settings.grace_us / 1_000_000)

    def _slots_with(self, tokens: set[Token]) -> list[Slot]:
        return [slot for slot in self._slots if slot.job is not None and (slot.job.id, slot.job.epoch) in tokens]

    def _stuck(self) -> None:
        """Shut down if too many threads and tasks are lost to handlers that do not end."""
        count = self._threads.stuck + len(self._left)
        most = self._settings.most_stuck or max(1, self._settings.concurrency // 2)
        if count >= most and not self._departure.asked:
            logger.warning("%d handlers do not end and cannot be ended: this worker drains and ends", count)
            self._give_up(f"{count} handlers do not end and cannot be ended")

    # --- write

    async def _write(self) -> None:
        while True:
            await self._finished.wait()
            self._finished.clear()
            batch, self._results = self._results, []
            if batch:
                await self._settle(batch)
                self._pace.note(len(batch))
                self._in_hand -= len(batch)
                self._changed.set()

    async def _settle(self, batch: list[tuple[Job, Any]]) -> None:
        """Write the outcomes of the jobs. A change that is too late has no effect: the job belongs to another worker by
        now."""
        actor = self._registration.actor
        changes = [settle(job, self._kinds.get(job.kind), said, self._chance, actor) for job, said in batch]
        await self._board.flush(job for job, _ in batch)
        if self._overruns:
            await self._keep_overruns()
        told = self._gate.reports(batch)
        ended = batch[0][0] if len(batch) == 1 else None
        late, next_jobs = await self._apply(sorted(changes, key=lambda change: change.move.trigger), told, ended)
        self._tell_ended([change for change in changes if change not in late] if late else changes)
        self._keeper.release([(change.id, change.epoch) for change in changes])
        self._report.note([(job, change, said) for (job, said), change in zip(batch, changes, strict=True)], late)
        self._in_hand += len(next_jobs)
        for job, _ in batch:
            self._pictures.pop(job.id, None)
        for job in next_jobs:
            self._inbox.put_nowait(job)
        self._maybe_due |= any(_makes_due(change) for change in changes) and not next_jobs
        for seconds in due_soon(changes, time.time_ns() // 1_000, POLL_SECONDS):
            self._loop.call_later(seconds, self._look_again)

    async def _keep_overruns(self) -> None:
        noted, self._overruns = self._overruns, []
        for job, overrun in noted:
            with contextlib.suppress(StoreError):  # it is in the log
                await queries.keep_overrun(self._store, job, overrun.text)

    async def _apply(
        self, changes: list[Change], told: list[breakers.Report], ended: Job | None
    ) -> tuple[list[Change], list[Job]]:
        """Write the changes, with retries; a repeated change counts as written.

        When a step of a flow finishes, the transaction can also start the next step here. If the response is lost, the
        next step is claimed under its number.
        """
        number, sent, again, pause = secrets.randbits(62), time.monotonic(), False, SHORTEST_PAUSE
        room = self._pace.room(self._in_hand - len(changes)) if any(change.step_id for change in changes) else 0
        while True:
            try:
                seat = self._seat(number, ended) if room and not again and not self._departure.asked else None
                done = await settled(self._store, changes, told, seat)
                begun = [] if done.begun is None else [done.begun]
                if again and room:
                    begun = await self._claim_from(self._store, number, room, again=True)
                self._hold_next(begun, sent)
                if done.stirred:
                    self._house.stirred()
                self._outage.over("write")
                return done.late, begun
            except StoreError as error:
                self._outage.endure("write", error)
                again, pause = True, await self._pause(pause)

    def _seat(self, number: int, ended: Job | None) -> Seat | None:
        """Return a slot for the next step of a flow, or None if a due job might have waited longer."""
        if self._maybe_due:
            return None
        worker, settings = self._registration.id, self._settings
        queues, own = settings.queues, settings.tenant_id
        return Seat(worker, self._lease_us, number, queues, own, ended, pictures=self._pictures)

    def _hold_next(self, jobs: Sequence[Job], sent: float) -> None:
        """Hold the leases of jobs that a write started, from when the write was sent."""
        if jobs:
            self._keeper.hold(jobs, self._lease_us, sent, self._lengths)
            self._house.begun(jobs)

    # --- end

    async def _drain(self) -> None:
        """Release the inbox and wait for running handlers.

        Jobs whose handlers do not end or whose outcomes cannot be written are left to their leases.
        """
        self._give_back()
        await self._all_settled(lambda: self._departure.ends_at)
        if self._in_hand:
            for slot in self._slots:
                slot.stop(hard=True, cancelled=self._departure.cancelled)
            last = time.monotonic() + END_SECONDS
            await self._all_settled(lambda: last)

    def _give_back(self, reason: str = "worker drains") -> None:
        """Release the jobs that have not started."""
        while not self._inbox.empty():
            self._finish(self._inbox.get_nowait(), Release(reason))

    async def _all_settled(self, ends_at: Callable[[], float]) -> None:
        """Wait until no job is in hand or the time is up. The deadline can move closer during the wait."""
        while self._in_hand and (left := ends_at() - time.monotonic()) > 0:
            self._changed.clear()
            await self._something_changed(left)

    async def _stop_keeper(self) -> None:
        try:
            await asyncio.to_thread(self._keeper.stop)
        except RuntimeError:  # the process cannot start another thread
            self._keeper.stop()

    def _disown(self) -> None:
        for task in (*self._left, *(slot.work for slot in self._slots), *(slot.task for slot in self._slots)):
            _disowned(task)

    async def _end(self, duties: list[asyncio.Task[None]], failure: Exception | None) -> None:
        for slot in self._slots:
            slot.close()
        for duty in duties:
            duty.cancel()
        await asyncio.wait([*duties, *(slot.task for slot in self._slots)], timeout=END_SECONDS)
        self._disown()
        await self._stop_keeper()
        self._threads.stop()
        self._board.close()
        await self._isolation.close()
        await self._tools.close()
        if failure is None:
            await self._registration.ended(self._store, self._departure.reason)
            if not self._departure.at_once:
                await self._house.end()
        else:
            await self._registration.failed(self._store, described(failure))
        await flush(self._store)


def _disowned(task: asyncio.Task[None] | None) -> None:
    """Hide a task that does not end from `asyncio.run`, which would never return."""
    if task is not None and not task.done():
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio does for tasks of its own
        asyncio.tasks._unregister_task(task)  # documented for those who implement tasks


def _makes_due(change: Change) -> bool:
    """Return whether the change might have made a job due."""
    return bool(change.move.raises_epoch or change.parent_id or change.limit_key or change.tree_id)

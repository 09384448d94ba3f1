"""Serve the claims of workers without a database: give them jobs that are due now, or wait for jobs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from keptwork.agents.engine import AGENT_KIND
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import WORKER
from keptwork.core.lifecycles.worker import IDLE
from keptwork.core.validation import OWN_KINDS
from keptwork.errors import BadInput, KeptworkError, StoreError
from keptwork.flows.expression import Wrong
from keptwork.flows.steps.crew import SHARE
from keptwork.flows.steps.kind import EXECUTED
from keptwork.jobs import complete
from keptwork.jobs.outcome import Raised, Release
from keptwork.jobs.outcome import settle as decided
from keptwork.jobs.schedules import START
from keptwork.maintenance.flow_timers import FlowWatch
from keptwork.maintenance.periodic import Outage
from keptwork.outcomes import PermanentError
from keptwork.store import Job, Store
from keptwork.store.contract.checkpoints import Checkpoint
from keptwork.store.contract.records import Standing
from keptwork.workers import commands as commands_enrolment
from keptwork.workers.commands import may_claim
from keptwork.workers.registration import Order, understood
from keptwork.workers.step_runner import TASK, Task, task_of

# Let claims wait for jobs. Equal claims wait in one line, and a notification wakes only the first of each line.
#
# A claim that is woken checks for due jobs and wakes the next claim if there were some. A new job therefore costs one
# or two claims, however many wait. Once per second the first claim of each line checks anyway, for jobs that time has
# made due and for lost notifications. The workers of all waiting claims are then checked together: a paused worker is
# skipped, and a worker that must end leaves immediately.


LOOK_SECONDS = 1.0
AT_ONCE = 500

Line = tuple[Hashable, ...]
"""The claim parameters that are equal in one line."""


class Place:
    """One waiting claim."""

    def __init__(self, line: Line, worker: int) -> None:
        self.line = line
        self.worker = worker
        self.aside = False
        self.over = False
        self.called = False
        self._news = asyncio.Event()

    def call(self) -> None:
        """Wake the claim, because jobs might be due."""
        self.called = True
        self._news.set()

    def leave(self) -> None:
        """End the wait: the caller has gone, or the server or the worker is about to end."""
        self.over = True
        self._news.set()

    async def is_called(self, until: float) -> bool:
        """Return whether to check for jobs again, rather than to leave. `until` is a time of the event loop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()
        self._news.clear()
        called, self.called = self.called, False
        return called and not self.over


class WaitingRoom:
    """The waiting claims of a server. It has a task only while a claim waits."""

    def __init__(self, store: Store, closing: asyncio.Event, look_seconds: float = LOOK_SECONDS) -> None:
        self._store = store
        self._closing = closing
        self._look_seconds = look_seconds
        self._lines: dict[Line, dict[Place, None]] = {}
        self._warden: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def place(self, line: Line, worker: int) -> AsyncIterator[Place]:
        """Yield a place at the end of a line. A place that leaves with an unused wakeup passes it on."""
        place = Place(line, worker)
        self._lines.setdefault(line, {})[place] = None
        if self._closing.is_set():
            place.leave()
        elif self._warden is None or self._warden.done():
            self._warden = asyncio.create_task(self._watch())
        try:
            yield place
        finally:
            self._lines[line].pop(place)
            if not self._lines[line]:
                del self._lines[line]
            if place.called:
                self.call_next(line)

    def call_next(self, line: Line) -> None:
        """Wake the first claim of a line that is not skipped."""
        first = next((place for place in self._lines.get(line, ()) if not place.aside), None)
        if first is not None:
            first.call()

    def _ring(self) -> None:
        for line in list(self._lines):
            self.call_next(line)

    async def _watch(self) -> None:
        """Watch while claims wait and the server is not closing."""
        stop_listening = self._store.listen(self._ring)
        try:
            while self._lines and not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_seconds):
                        await self._closing.wait()
                # unreachable: they continue to wait, and their own checks report it
                with contextlib.suppress(StoreError):
                    await self._ask_about()
                self._ring()
        finally:
            stop_listening()
        for place in self._everyone():
            place.leave()

    async def _ask_about(self) -> None:
        workers = list(dict.fromkeys(place.worker for place in self._everyone()))
        standing: dict[int, Standing] = {}
        for start in range(0, len(workers), AT_ONCE):
            rows = await self._store.rows(WORKER, workers[start : start + AT_ONCE], ("id", *Standing._fields))
            standing |= {row.pop("id"): Standing(**row) for row in rows}
        for place in self._everyone():
            if place.worker not in workers:
                continue  # it arrived meanwhile
            found = standing.get(place.worker)
            place.aside = found is not None and not may_claim(found.state)
            if understood(found) is not None:
                place.leave()

    def _everyone(self) -> Iterator[Place]:
        return iter([place for line in self._lines.values() for place in line])

    async def close(self) -> None:
        """End all waits."""
        if self._warden is not None:
            self._warden.cancel()
            await asyncio.wait([self._warden])


CALL = f"{OWN_KINDS}call"
AT_HOME = tuple(sorted({*(f"{OWN_KINDS}{kind}" for kind in EXECUTED), AGENT_KIND, SHARE, START} - {CALL}))
"""Kinds that only workers with a database run, because they need breakers, budgets, tools, or model keys."""

MOST_JOBS = 500
MOST_WAITS, FULL_SECONDS = 10_000, 2.0
MOST_REMEMBERED, MOST_KINDS = 10_000, 1_000


@dataclass(frozen=True, slots=True)
class Ask:
    """A worker's claim request.

    If the response to claim `number` was lost (`again`), the worker receives the jobs of that claim and no others. If
    it is unknown whether the response was lost (`again` is None), it receives those jobs or, if there are none, new
    ones. Without `kinds`, it can receive every kind except those that need a database.
    """

    worker: int
    tenant_id: int
    queues: Sequence[str]
    kinds: Sequence[str] = ()
    limit: int = 1
    lease_us: int = 60_000_000
    start: bool = True
    number: int = 0
    again: bool | None = False

    @property
    def line(self) -> Line:
        return (self.tenant_id, *sorted(self.queues), "", *sorted(self.kinds))


class Given(NamedTuple):
    """A claimed job, its stored checkpoints and, for a step of a flow, the function to call."""

    job: Job
    checkpoints: Sequence[Checkpoint] = ()
    task: Task | None = None


class Answer(NamedTuple):
    """The claimed jobs, the worker's state, and the order for the worker, if there is one."""

    jobs: list[Given]
    state: str
    order: Order | None


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise `BadInput` for kinds that a worker without a database cannot run."""
    for kind in kinds:
        if kind in AT_HOME or (kind.startswith(OWN_KINDS) and kind != CALL):
            raise BadInput(what=f"{kind} is carried out by workers with the database only; of steps, take {CALL}")


def number_of(key: str) -> int:
    """Return the claim number of an idempotency key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) >> 2


class Claims:
    """The claims of all workers of a server."""

    def __init__(self, store: Store, closing: asyncio.Event, look_seconds: float = LOOK_SECONDS) -> None:
        self._store = store
        self.room = WaitingRoom(store, closing, look_seconds)
        self._flows = FlowWatch(store, Outage())
        self._foreign: OrderedDict[int, set[str]] = OrderedDict()

    async def claim(self, ask: Ask, wait_seconds: float, left: asyncio.Event) -> Answer:
        """Return due jobs immediately, or as soon as some are due within the wait. If the caller has `left` meanwhile,
        its jobs are released."""
        standing = await self._store.beat(ask.worker)
        order = understood(standing)
        if standing is None or order is not None:
            return Answer([], WORKER.initial.name if standing is None else standing.state, order)
        jobs = await self._jobs(ask, wait_seconds, left)
        if left.is_set() and jobs:
            await self._give_back(jobs, ask, "its worker hung up before it was given the job")
            jobs = []
        state = standing.state
        if jobs and state == IDLE.name:
            state = await self._started(ask)
        return Answer(await self._given(jobs, ask), state, None)

    async def _jobs(self, ask: Ask, wait_seconds: float, left: asyncio.Event) -> list[Job]:
        jobs = [] if ask.again is False else await self._claimed(ask, again=True)
        if jobs or ask.again:
            return jobs
        jobs = await self._taken(ask)
        if jobs or not wait_seconds or left.is_set():
            return jobs
        if len(self.room) >= MOST_WAITS:
            await asyncio.sleep(min(wait_seconds, FULL_SECONDS))  # after which the worker claims again
            return []
        until = asyncio.get_running_loop().time() + wait_seconds
        async with self.room.place(ask.line, ask.worker) as place, _leaving(place, left):
            jobs = await self._taken(ask)  # notifications before this place existed went to others
            while not jobs and await place.is_called(until):
                jobs = await self._taken(ask)
        if jobs:
            self.room.call_next(ask.line)
        return jobs

    async def _taken(self, ask: Ask) -> list[Job]:
        """Claim jobs. Jobs of kinds that the worker does not know are released, and their kinds excluded from then
        on."""
        while True:
            jobs = await self._claimed(ask)
            foreign = [job for job in jobs if ask.kinds and job.kind not in ask.kinds]
            if foreign:
                self._remember(ask.worker, foreign)
                known = ", ".join(ask.kinds)
                await self._give_back(foreign, ask, f"its worker takes only: {known}", backs_off=True)
            if len(foreign) < len(jobs) or not jobs:
                return [job for job in jobs if job not in foreign]

    async def _claimed(self, ask: Ask, again: bool = False) -> list[Job]:
        return await self._store.claim(
            ask.worker,
            ask.queues,
            ask.limit,
            ask.lease_us,
            claim_id=ask.number,
            tenant_id=ask.tenant_id,
            start=ask.start,
            again=again,
            without=self._without(ask),
        )

    def _without(self, ask: Ask) -> tuple[str, ...]:
        calls = () if CALL in ask.kinds else (CALL,)
        return (*AT_HOME, *calls, *self._foreign.get(ask.worker, ()))

    def _remember(self, worker: int, jobs: Sequence[Job]) -> None:
        kinds = self._foreign.setdefault(worker, set())
        self._foreign.move_to_end(worker)
        kinds |= {job.kind for job in jobs[: MOST_KINDS - len(kinds)]}
        if len(self._foreign) > MOST_REMEMBERED:
            self._foreign.popitem(last=False)

    async def _give_back(self, jobs: Sequence[Job], ask: Ask, why: str, backs_off: bool = False) -> None:
        said = Release(why, backs_off)
        changes = [decided(job, None, said, random.random, f"w:{ask.worker}") for job in jobs]
        await complete.applied(self._store, changes)

    async def _started(self, ask: Ask) -> str:
        """Move the worker to running at its first claim."""
        id, actor = public_id(WORKER.name, ask.worker), f"w:{ask.worker}"
        try:
            return str((await commands_enrolment.enrol(self._store, ask.tenant_id, id, actor))["state"])
        except KeptworkError:  # another process moved the worker meanwhile, and its next request reports that
            return IDLE.name

    async def _given(self, jobs: Sequence[Job], ask: Ask) -> list[Given]:
        given = []
        if any(job.step_id is not None for job in jobs):
            self._flows.begun(jobs)
            with contextlib.suppress(StoreError):  # the next claim records it
                await self._flows.look()
        for job in jobs:
            kept = await self._store.checkpoints(job.tenant_id, job.id) if job.epoch else []
            try:
                given.append(Given(job, kept, await self._task(job)))
            except PermanentError as error:
                change = decided(job, None, Raised(error, "input"), random.random, f"w:{ask.worker}")
                await complete.applied(self._store, [change])
        return given

    async def _task(self, job: Job) -> Task | None:
        """Return the function call of a step. References are resolved here, because the worker cannot read the flow."""
        if job.kind != CALL:
            return None
        said: dict[str, Any] = json.loads(job.payload)
        try:
            return await task_of(self._store, job.tenant_id, **{name: said[name] for name in TASK if name in said})
        except Wrong as error:
            raise PermanentError(str(error)) from None


@contextlib.asynccontextmanager
async def _leaving(place: Place, left: asyncio.Event) -> Any:
    """Give up the place in the line when the caller leaves."""

    async def watch() -> None:
        await left.wait()
        place.leave()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()

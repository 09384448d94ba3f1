"""The overview: what needs an operator, and what is running, waiting, and serving.

It reads only unfinished entities, and not more of them than a screen shows. Finished work does not slow it down.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, Lifecycle, Verb
from keptwork.core.lifecycles.breaker import CLOSED
from keptwork.core.lifecycles.job import DEAD_LETTERED
from keptwork.flows.compiled import KINDS, Kind
from keptwork.flows.plan import Phase, phases
from keptwork.jobs import limits
from keptwork.store import JobFilter, QueueSummary, Reader, Store
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.jobs_list import LEASED
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.contract.workers import ALIVE
from keptwork.store.counters import Tally
from keptwork.workers import commands as workers

# Throughput: jobs enqueued and ended in the last minute, and per minute of the last hour.
#
# The database counts the log minute by minute. Finished minutes are cached in this process, because they no longer
# change. A repeated read therefore counts two minutes, however long the log is.


MINUTE_US = 60_000_000
MINUTES = 60
MOST_MOVES = 20_000
"""Maximum moves that one read counts. Further minutes are left to the next read."""

REST = 20
"""Pause after a read, in multiples of its duration, so that a busy log is counted rarely."""

MOST_TENANTS = 1_000

_ENDS = frozenset(move.trigger for move in JOB.moves if move.target.final)
_FAILS = frozenset(move.trigger for move in JOB.moves if move.verb in (Verb.FAIL, Verb.DEAD_LETTER))


class Minute(NamedTuple):
    """The jobs enqueued, ended, and failed in a minute, which starts at `at`."""

    at: int
    enqueued: int
    ended: int
    failed: int

    @classmethod
    def of(cls, at: int, moves: dict[str, int]) -> Minute:
        """Return the minute with these moves of jobs.

        >>> Minute.of(0, {"enqueue": 3, "claim": 3, "succeed": 2, "dead_letter": 1})
        Minute(at=0, enqueued=3, ended=3, failed=1)
        """
        ended, failed = (sum(moves.get(trigger, 0) for trigger in among) for among in (_ENDS, _FAILS))
        return cls(at, moves.get(JOB.creation.trigger, 0), ended, failed)


class Throughput(NamedTuple):
    """The last 60 s, and the minutes of the last hour, oldest first.

    The last minute is incomplete. In a busy log, the first reads return fewer minutes.
    """

    last_minute: Minute
    minutes: list[Minute]

    @property
    def per_second(self) -> float:
        """Jobs that ended per second, in the last minute."""
        return self.last_minute.ended / (MINUTE_US / 1_000_000)


@dataclass(slots=True)
class _Known:
    """The cached minutes of a tenant by number, and the time of its next count."""

    minutes: dict[int, Minute] = field(default_factory=dict)
    told: Throughput | None = None
    rests_until: float = 0.0


_known: WeakKeyDictionary[Tally, dict[int, _Known]] = WeakKeyDictionary()
"""Per open database."""


async def read_throughput(store: Store, tenant_id: int, clock: Callable[[], float] = time.monotonic) -> Throughput:
    """Return the throughput of a tenant."""
    tenants = _known.setdefault(store.tally, {})
    if len(tenants) >= MOST_TENANTS and tenant_id not in tenants:
        tenants.clear()
    known = tenants.setdefault(tenant_id, _Known())
    begun = clock()
    if known.told is None or begun >= known.rests_until:
        async with store.snapshot() as moment:
            known.told = await _counted(moment, tenant_id, known.minutes)
        ended = clock()
        known.rests_until = ended + REST * (ended - begun)
    return known.told


async def _counted(moment: Reader, tenant_id: int, known: dict[int, Minute]) -> Throughput:
    now, moves = await moment.now(), 0
    current = now // MINUTE_US
    for number in set(known) - set(range(current - MINUTES + 1, current + 1)):
        del known[number]
    minutes: list[Minute] = []
    for number in range(current, current - MINUTES, -1):
        # A move can be committed a little after its time, so a minute is complete only when the next one has ended.
        over = number < current - 1
        if over and number not in known and moves > MOST_MOVES:
            break
        found = known.get(number)
        if found is None:
            found, counted = await _minute(moment, tenant_id, number)
            moves += counted
        if over:
            known[number] = found
        minutes.append(found)
    lately = await moment.job_moves_since(tenant_id, now - MINUTE_US)
    return Throughput(Minute.of(now - MINUTE_US, lately), minutes[::-1])


async def _minute(moment: Reader, tenant_id: int, number: int) -> tuple[Minute, int]:
    """Return the minute with this number, and the number of its moves."""
    at = number * MINUTE_US
    found = await moment.job_moves_since(tenant_id, at, at + MINUTE_US)
    return Minute.of(at, found), sum(found.values())


def throughput_json(found: Throughput) -> dict[str, Any]:
    """Return throughput in its public form."""
    return {"last_minute": _shown(found.last_minute), "minutes": [_shown(one) for one in found.minutes]}


def _shown(minute: Minute) -> dict[str, Any]:
    return {**minute._asdict(), "at": rfc3339(minute.at)}


MOST_COUNTED = 1_000
"""Maximum count of entities that need an operator."""

MOST_FAILED = 100
MOST_FLOWS = 10
MOST_JOBS = 200
MOST_QUEUES = 100
MOST_WORKERS = 100

OF_ONE_FLOW = ("run-", "agent-")
"""Prefixes of queues that `keptwork run` and `keptwork agent` create for one flow or agent."""

OF_JOBS = ("id", "kind", "queue", "state", "attempts", "owner", "updated_at")

Row = dict[str, Any]


class Need(NamedTuple):
    """A number of entities that wait for an operator, with their name in singular and plural."""

    name: str
    one: str
    many: str
    number: int

    @property
    def says(self) -> str:
        """The name that fits the number.

        >>> Need("approvals", "open approval", "open approvals", 1).says
        'open approval'
        """
        return self.one if self.number == 1 else self.many


class FlowLine(NamedTuple):
    """A running flow, and how many of its steps are done."""

    kind: Kind
    flow: Row
    done: int
    total: int

    @property
    def public_id(self) -> str:
        return public_id(self.kind.flow.name, self.flow["id"])


class Overview(NamedTuple):
    """The overview of a tenant.

    `jobs` are assigned and running, oldest first. `queues` have jobs, are paused, or are served.
    """

    now: int
    needs: list[Need]
    flows: list[FlowLine]
    jobs: list[Row]
    queues: list[QueueSummary]
    workers: list[Row]
    throughput: Throughput

    @property
    def urgent(self) -> list[Need]:
        """The needs that are not zero."""
        return [need for need in self.needs if need.number]

    @property
    def running(self) -> int:
        """Number of jobs that workers hold."""
        return sum(map(limits.at_work, self.queues))

    @property
    def queued(self) -> int:
        """Number of queued jobs, for any reason."""
        return sum(map(limits.queued, self.queues))

    @property
    def held(self) -> Counter[int]:
        """Number of jobs by worker."""
        return Counter(job["owner"] for job in self.jobs)


async def read(store: Store, tenant_id: int) -> Overview:
    """Return the current overview of a tenant."""
    lately = await read_throughput(store, tenant_id)
    async with store.snapshot() as moment:
        now = await moment.now()
        waiting = await moment.queues(tenant_id, unfinished_only=True)
        alive = await moment.workers(WorkerFilter(tenant_id, ALIVE), limit=MOST_WORKERS)
        return Overview(
            now,
            await _needs(moment, tenant_id, waiting, alive, now),
            await _flows(moment, tenant_id),
            await moment.jobs(JobFilter(tenant_id, LEASED), limit=MOST_JOBS, newest_first=False, columns=OF_JOBS),
            _shown_queues(waiting, alive)[:MOST_QUEUES],
            alive,
            lately,
        )


# --- what needs an operator


async def _needs(moment: Reader, tenant_id: int, waiting: list[QueueSummary], alive: list[Row], now: int) -> list[Need]:
    approvals = await moment.approvals(tenant_id, limit=MOST_COUNTED)
    given_up = JobFilter(tenant_id, (DEAD_LETTERED.name,), redriven=False)
    letters = await moment.jobs(given_up, limit=MOST_COUNTED, columns=("id",))
    unclosed = [one for one in await moment.breakers(tenant_id) if one.row["state"] != CLOSED.name]
    return [
        Need("approvals", "open approval", "open approvals", len(approvals)),
        Need("failed_flows", "failed flow to mend", "failed flows to mend", await _failed(moment, tenant_id)),
        Need("dead_letters", "dead letter", "dead letters", len(letters)),
        Need("open_breakers", "open breaker", "open breakers", len(unclosed)),
        Need("held_jobs", "job held back", "jobs held back", sum(queue.held for queue in waiting)),
        Need("paused_queues", "paused queue", "paused queues", sum(one.paused_at is not None for one in waiting)),
        Need("silent_workers", "silent worker", "silent workers", sum(workers.is_silent(row, now) for row in alive)),
    ]


async def _failed(moment: Reader, tenant_id: int) -> int:
    """Return how many failed flows an operator must retry or abandon."""
    found = 0
    for kind in KINDS.values():
        wanted = FlowFilter(tenant_id=tenant_id, states=_failing(kind.flow))
        found += len(await moment.flows(kind.flow, wanted, limit=MOST_FAILED)) if wanted.states else 0
    return found


def _failing(flow: Lifecycle) -> tuple[str, ...]:
    failed = {move.target for move in flow.moves if move.verb is Verb.FAIL}
    return tuple(state.name for state in flow.states if state in failed and not state.final)


# --- what is running


async def _flows(moment: Reader, tenant_id: int) -> list[FlowLine]:
    """Return the newest running flows of all kinds."""
    found = [
        (kind, flow)
        for kind in KINDS.values()
        for flow in await moment.flows(
            kind.flow, FlowFilter(tenant_id=tenant_id, states=_going(kind.flow)), limit=MOST_FLOWS
        )
    ]
    newest = sorted(found, key=lambda one: -int(one[1]["created_at"]))[:MOST_FLOWS]
    return [await _line(moment, kind, flow) for kind, flow in newest]


def _going(flow: Lifecycle) -> tuple[str, ...]:
    return tuple(state.name for state in flow.states if not state.final and state.name not in _failing(flow))


async def _line(moment: Reader, kind: Kind, flow: Row) -> FlowLine:
    counts = await moment.step_counts(flow["id"])
    done = sum(count for state, count in counts.items() if phases(kind.step)[state] is Phase.SATISFIED)
    return FlowLine(kind, flow, done, sum(counts.values()))


def _shown_queues(waiting: list[QueueSummary], alive: Iterable[Row]) -> list[QueueSummary]:
    """Return the queues with unfinished jobs, paused queues, and served queues.

    A queue of one flow is returned only while it has jobs.
    """
    served = {name for row in alive for name in workers.serves(row)["queues"]}
    idle = {name: QueueSummary(name, {}, None, None) for name in served if type(name) is str}
    found = idle | {queue.name: queue for queue in waiting}
    return [
        queue
        for name, queue in sorted(found.items())
        if queue.jobs or queue.paused_at is not None or (name in served and not name.startswith(OF_ONE_FLOW))
    ]


# --- JSON


def as_json(found: Overview) -> dict[str, Any]:
    """Return an overview in its public form."""
    return {
        "at": rfc3339(found.now),
        "needs": {need.name: need.number for need in found.needs},
        "jobs": {"queued": found.queued, "running": found.running},
        "throughput": throughput_json(found.throughput),
        "flows": [_flow_json(line) for line in found.flows],
        "running": [job_json(job) for job in found.jobs],
        "queues": [{**limits.queue_json(queue), "held": queue.held} for queue in found.queues],
        "workers": [_worker_json(row, found) for row in found.workers],
    }


def _flow_json(line: FlowLine) -> dict[str, Any]:
    flow = line.flow
    facts = {"id": line.public_id, "name": flow["name"], "state": flow["state"]}
    facts["held"] = flow["held_at"] is not None
    return {**facts, "done": line.done, "total": line.total, "created_at": rfc3339(flow["created_at"])}


def job_json(job: Row) -> dict[str, Any]:
    """Return a job that a worker holds in its public form."""
    facts = {name: job[name] for name in ("kind", "queue", "state", "attempts")}
    owner = None if job["owner"] is None else public_id("worker", job["owner"])
    return {"id": public_id(JOB.name, job["id"]), **facts, "worker": owner, "since": rfc3339(job["updated_at"])}


def _worker_json(row: Row, found: Overview) -> dict[str, Any]:
    shown = workers.as_json(row)
    facts = {name: shown[name] for name in ("id", "name", "state", "host", "queues", "concurrency", "seen_at")}
    return {**facts, "jobs": found.held[row["id"]], "silent": workers.is_silent(row, found.now)}

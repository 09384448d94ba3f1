"""Schedules: declare or add, show, pause, and resume them, and fire their ticks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

from keptwork.core import durations, secrets
from keptwork.core.durations import Span, rfc3339
from keptwork.core.lifecycles import JOB
from keptwork.core.schedule_rules import (
    PREFIX,
    CatchUp,
    Rule,
    check_catch_up,
    correlation,
    due,
    next_tick,
    next_ticks,
    tick_of,
    zone,
)
from keptwork.core.validation import check_name
from keptwork.errors import BadInput, NotFound, ScheduleThere
from keptwork.flows import start
from keptwork.flows.validation import bound
from keptwork.job import JobType
from keptwork.jobs import limits
from keptwork.jobs.queries import check_kind, new_job
from keptwork.store import EventFilter, NewJob, Store, Transaction
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.queues import SCHEDULER, Plan, Schedule

MOST_SCHEDULES = 100
MOST_JOBS = 1_000
SHOWN_TICKS = 5
SHOWN_EVENTS = 50
DECLARED = "code"
"""`declared_by` of schedules that an application declares."""

START = "keptwork.start"
"""The built-in kind of job that starts a flow."""

logger = logging.getLogger("keptwork")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A checked schedule that is not stored yet."""

    name: str
    rule: Rule
    catch_up: CatchUp

    @classmethod
    def of(cls, name: str, rule: Rule, catch_up: str = "latest") -> Declaration:
        check_name("schedule", name)
        return cls(name, rule, check_catch_up(catch_up))


async def put(store: Store, declared: Declaration, job: NewJob, by: str) -> None:
    """Store a schedule that enqueues this job.

    An existing schedule of that name stays paused, and keeps its unfired ticks if its rule is the same.
    """
    next_at = next_tick(declared.rule, await store.now())
    await store.put_schedule(Schedule.of(declared.name, job, declared.rule, declared.catch_up, by, next_at))


async def add(store: Store, declared: Declaration, job: NewJob, by: str) -> Schedule:
    """Store a new schedule for an operator. Raise `ScheduleThere` if the name is taken."""
    held = await limits.under_limit(store, job)

    async def put_new(tx: Transaction) -> Schedule:
        if any(one.name == declared.name for one in await tx.schedules(job.tenant_id)):
            raise ScheduleThere(name=declared.name)
        next_at = next_tick(declared.rule, await tx.now())
        await tx.put_schedule(Schedule.of(declared.name, held, declared.rule, declared.catch_up, by, next_at))
        return await find(tx, job.tenant_id, declared.name)

    return await store.atomically(put_new)


class Page(NamedTuple):
    """A page of schedules, and the name of its last schedule if there are more."""

    schedules: list[Schedule]
    next: str | None


async def page(store: Store, tenant_id: int, *, after: str | None = None, limit: int = 50) -> Page:
    """Return one page of a tenant's schedules, by name."""
    every = sorted(await store.schedules(tenant_id), key=lambda one: one.name)
    found = [one for one in every if after is None or one.name > after]
    return Page(found[:limit], found[limit - 1].name if len(found) > limit else None)


async def find(store: Store | Transaction, tenant_id: int, name: str) -> Schedule:
    """Return the schedule with this name, or raise `NotFound`."""
    found = next((one for one in await store.schedules(tenant_id) if one.name == name), None)
    if found is None:
        raise _unknown(name)
    return found


async def jobs(store: Store, schedule: Schedule) -> list[dict[str, Any]]:
    """Return the jobs that the last tick has enqueued."""
    if schedule.last_at is None:
        return []
    belongs_to = correlation(schedule.name, schedule.last_at)
    wanted = EventFilter(schedule.tenant_id, entity=JOB.name, correlation_id=belongs_to)
    log = await store.events(wanted, limit=SHOWN_EVENTS)
    return await store.rows(JOB, sorted({event.entity_id for event in log}), ("id", "state"))


@acknowledged
async def pause(store: Store, tenant_id: int, name: str) -> Schedule:
    """Pause a schedule, whose ticks then pass without jobs. Return the schedule as it was before."""
    before = await find(store, tenant_id, name)
    if not await store.pause_schedule(tenant_id, name):
        raise _unknown(name)
    return before


@acknowledged
async def resume(store: Store, tenant_id: int, name: str) -> Schedule:
    """Resume a schedule from its next tick on, without the ticks of its pause.

    Return the schedule as it was before.
    """
    before = await find(store, tenant_id, name)
    if not await store.resume_schedule(tenant_id, name, next_tick(before.rule, await store.now())):
        raise _unknown(name)
    return before


@acknowledged
async def delete(store: Store, tenant_id: int, name: str) -> Schedule:
    """Delete a schedule but not its jobs, and return it."""
    before = await find(store, tenant_id, name)
    if not await store.drop_schedule(tenant_id, name):
        raise _unknown(name)
    return before


@acknowledged
async def run_now(store: Store, tenant_id: int, name: str, by: str) -> int:
    """Enqueue a schedule's job now, even if it is paused, and return the job's key. Its ticks do not change."""
    schedule = await find(store, tenant_id, name)
    (key,) = await store.enqueue([_job(schedule, await store.now(), by)])
    return key


async def fire(store: Store) -> int:
    """Enqueue the jobs of due schedules and advance the schedules, in one write.

    Each tick is fired once, whichever process crashes. Return how many schedules advanced. Further due schedules are
    left to the next call.
    """
    return await store.fire_schedules(plan, MOST_SCHEDULES, MOST_JOBS)


def plan(schedule: Schedule, now: int) -> Plan | None:
    """Return the next jobs and tick of a schedule, or None if this process cannot read it.

    For example, this host might not know its time zone. Other processes might, and the other schedules must not wait.
    """
    try:
        ticks, next_at = due(schedule.rule, schedule.catch_up, schedule.next_at, schedule.last_at, now)
        jobs = [_job(schedule, tick, SCHEDULER) for tick in ticks]
        return Plan(jobs, next_at, max(ticks, default=None))
    except Exception as error:  # for example, a manual edit of the table
        _complain(schedule.name, str(error))
        return None


@lru_cache(maxsize=1_000)
def _complain(name: str, error: str) -> None:
    """Log a warning once per process.

    The schedule stays due, so every call finds it again.
    """
    logger.warning("schedule %s cannot be fired here: %s", name, error)


async def wanted(
    store: Store,
    tenant_id: int,
    kind: str | None,
    payload: Mapping[str, Any],
    template: str | None,
    inputs: Mapping[str, Any],
    queue: str = "default",
) -> NewJob:
    """Return the job of a schedule: one of a kind, or one that starts a flow of a template."""
    if (kind is None) == (template is None):
        raise BadInput(what="a schedule starts one of both: say a kind of job, or the template of a flow")
    if template is not None:
        return await start_of_template(store, tenant_id, template, inputs, queue)
    check_kind(kind or "")
    return new_job(tenant_id, kind or "", json.dumps(dict(payload)), queue=queue)


async def start_of_template(
    store: Store, tenant_id: int, named: str, inputs: Mapping[str, Any], queue: str = "default"
) -> NewJob:
    """Return the job of a schedule that starts a flow of a template.

    Invalid inputs raise an error now instead of at each tick.
    """
    template = await start.find(store, tenant_id, named)
    bound(start.flow_of(template), inputs)
    return start_of(tenant_id, named, inputs, queue)


def start_of(tenant_id: int, flow: str, inputs: Mapping[str, Any], queue: str) -> NewJob:
    """Return a job that starts a flow of a template: by its ID, or the newest version of a name."""
    said = json.dumps({"flow": flow, "inputs": dict(inputs)}, separators=(",", ":"))
    secrets.insist(f"what flow {flow} is given", said)
    return new_job(tenant_id, START, said, queue=queue)


def flow_key(correlation_id: str) -> str | None:
    """Return the key of the flow that a tick starts, by the correlation of the tick's job.

    Return None if the job belongs to no tick.

    >>> flow_key(correlation("nightly", 1_794_762_620_000_000)), flow_key("job_1")
    ('schedule:nightly:2026-11-15T17:10:20.000000Z', None)
    """
    if tick_of(correlation_id) is None:
        return None
    name, _, tick = correlation_id.removeprefix(PREFIX).rpartition("@")
    return f"schedule:{name}:{tick}"


def _job(schedule: Schedule, tick: int, by: str) -> NewJob:
    belongs_to = correlation(schedule.name, tick)
    return schedule.job._replace(actor=by, cause=f"schedule {schedule.name}", correlation_id=belongs_to)


def upcoming(schedule: Schedule, now: int) -> list[str]:
    """Return the next ticks of a schedule, in its own time zone."""
    first = [schedule.next_at] if schedule.paused_at is None else []
    ticks = first + next_ticks(schedule.rule, max(schedule.next_at, now) if first else now, SHOWN_TICKS - len(first))
    return [local(schedule, tick) for tick in ticks]


def local(schedule: Schedule, tick: int) -> str:
    """Return a tick in the time zone of its schedule."""
    epoch = datetime.fromtimestamp(0, zone("UTC"))
    return (epoch + timedelta(microseconds=tick)).astimezone(zone(schedule.tz)).isoformat(" ", "seconds")


async def flow_named(store: Store, schedule: Schedule) -> str | None:
    """Return the name of the flow that a schedule starts, or None.

    If the template was deleted, its ID or name is returned as it is in the schedule.
    """
    said = json.loads(schedule.payload) if schedule.kind == START else None
    flow = said.get("flow") if isinstance(said, dict) else None
    if flow is None:
        return None
    try:
        return (await start.find(store, schedule.tenant_id, str(flow))).name
    except NotFound:
        return str(flow)


def every(us: int) -> str:
    """Return an interval as text.

    >>> every(2_000_000), every(1_500_000), every(900_000_000)
    ('every 2 s', 'every 1.5 s', 'every 15m')
    """
    return f"every {us / 1_000_000:g} s" if us < 60_000_000 else f"every {durations.took(us)}"


def as_json(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule in its public form."""
    shown: dict[str, Any] = {
        "name": schedule.name,
        "kind": schedule.kind,
        "queue": schedule.queue,
        "payload": json.loads(schedule.payload),
        "cron": schedule.cron,
        "every_us": schedule.every_us,
        "tz": schedule.tz,
        "catch_up": schedule.catch_up,
        "declared_by": schedule.declared_by,
    }
    times: Sequence[str] = ("next_at", "last_at", "paused_at", "created_at", "updated_at")
    return shown | {name: _moment(getattr(schedule, name)) for name in times}


def _moment(us: int | None) -> str | None:
    return None if us is None else rfc3339(us)


def _unknown(name: str) -> NotFound:
    return NotFound(what="schedule", id=name, listing="keptwork schedules list")


# The schedules that an application declares: collected while its modules load, then stored by its workers.


class How(TypedDict, total=False):
    """The options of a schedule, besides its job."""

    cron: str | None
    every: Span | None
    tz: str
    name: str | None
    arguments: Mapping[str, Any] | None
    catch_up: CatchUp


class Declared(NamedTuple):
    """A schedule and the job that it enqueues."""

    schedule: Declaration
    kind: JobType
    arguments: Mapping[str, Any]


class DeclaredSchedules:
    """The schedules of one application, by name."""

    def __init__(self) -> None:
        self._declared: dict[str, Declared] = {}

    def add(self, kind: JobType, how: How) -> None:
        """Add a schedule. Raise `BadInput` here, where it is declared, if it is invalid."""
        name = how.get("name") or kind.name
        arguments = how.get("arguments") or {}
        if name in self._declared:
            raise BadInput(what=f"there are two schedules called {name!r}; give one of them a name=")
        try:
            rule = Rule.of(how.get("cron"), how.get("every"), how.get("tz", "UTC"))
            declaration = Declaration.of(name, rule, how.get("catch_up", "latest"))
            kind.payload(arguments)
            kind.insist_not_unique("schedules")
        except BadInput as refusal:
            raise BadInput(what=f"schedule {name}: {refusal}") from None
        self._declared[name] = Declared(declaration, kind, arguments)

    async def keep(self, store: Store, new_job: Callable[[JobType, Mapping[str, Any]], NewJob]) -> None:
        """Store the schedules in the database."""
        for declared in self._declared.values():
            job = new_job(declared.kind, declared.arguments)
            await put(store, declared.schedule, job, DECLARED)

"""Schedules: declared by applications or added by operators, looked at, paused, and fired tick by tick."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from keptwork import words
from keptwork.bounds import check_name
from keptwork.errors import BadInput, NotFound, ScheduleThere
from keptwork.flow.inputs import bound
from keptwork.lifecycle import JOB
from keptwork.moments import rfc3339
from keptwork.schedule import (
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
from keptwork.service import limits, secrecy, templates
from keptwork.service.acknowledged import acknowledged
from keptwork.service.jobs import check_kind, new_job
from keptwork.store import EventFilter, NewJob, Store, Transaction
from keptwork.store.schedules import SCHEDULER, Plan, Schedule

MOST_SCHEDULES = 100
MOST_JOBS = 1_000
SHOWN_TICKS = 5
SHOWN_EVENTS = 50
DECLARED = "code"
"""Who declared what an application declares."""

START = "keptwork.start"
"""The built-in kind of job that starts a flow."""

logger = logging.getLogger("keptwork")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule as it is asked for: checked, but not yet anybody's."""

    name: str
    rule: Rule
    catch_up: CatchUp

    @classmethod
    def of(cls, name: str, rule: Rule, catch_up: str = "latest") -> Declaration:
        check_name("schedule", name)
        return cls(name, rule, check_catch_up(catch_up))


async def put(store: Store, declared: Declaration, job: NewJob, by: str) -> None:
    """Keeps a schedule that enqueues this job. One of that name keeps its pause, and unless its rule is another, also
    the ticks it has not fired."""
    next_at = next_tick(declared.rule, await store.now())
    await store.put_schedule(Schedule.of(declared.name, job, declared.rule, declared.catch_up, by, next_at))


async def add(store: Store, declared: Declaration, job: NewJob, by: str) -> Schedule:
    """As `put`, for an operator: a name that is taken is refused."""
    held = await limits.under_limit(store, job)

    async def put_new(tx: Transaction) -> Schedule:
        if any(one.name == declared.name for one in await tx.schedules(job.tenant_id)):
            raise ScheduleThere(name=declared.name)
        next_at = next_tick(declared.rule, await tx.now())
        await tx.put_schedule(Schedule.of(declared.name, held, declared.rule, declared.catch_up, by, next_at))
        return await find(tx, job.tenant_id, declared.name)

    return await store.atomically(put_new)


class Page(NamedTuple):
    """Some schedules, and the name to go on after if there are more."""

    schedules: list[Schedule]
    next: str | None


async def page(store: Store, tenant_id: int, *, after: str | None = None, limit: int = 50) -> Page:
    """One page of the schedules of a tenant, by name."""
    every = sorted(await store.schedules(tenant_id), key=lambda one: one.name)
    found = [one for one in every if after is None or one.name > after]
    return Page(found[:limit], found[limit - 1].name if len(found) > limit else None)


async def find(store: Store | Transaction, tenant_id: int, name: str) -> Schedule:
    """The schedule of that name; one that is not there is `NotFound`."""
    found = next((one for one in await store.schedules(tenant_id) if one.name == name), None)
    if found is None:
        raise _unknown(name)
    return found


async def jobs(store: Store, schedule: Schedule) -> list[dict[str, Any]]:
    """What the last tick has enqueued."""
    if schedule.last_at is None:
        return []
    belongs_to = correlation(schedule.name, schedule.last_at)
    wanted = EventFilter(schedule.tenant_id, entity=JOB.name, correlation_id=belongs_to)
    log = await store.events(wanted, limit=SHOWN_EVENTS)
    return await store.rows(JOB, sorted({event.entity_id for event in log}), ("id", "state"))


@acknowledged
async def pause(store: Store, tenant_id: int, name: str) -> Schedule:
    """Its ticks pass from now on. Returns the schedule as it was before."""
    before = await find(store, tenant_id, name)
    if not await store.pause_schedule(tenant_id, name):
        raise _unknown(name)
    return before


@acknowledged
async def resume(store: Store, tenant_id: int, name: str) -> Schedule:
    """From its next tick on it is fired again; those of its pause are not. Returns the schedule as it was before."""
    before = await find(store, tenant_id, name)
    if not await store.resume_schedule(tenant_id, name, next_tick(before.rule, await store.now())):
        raise _unknown(name)
    return before


@acknowledged
async def delete(store: Store, tenant_id: int, name: str) -> Schedule:
    """It is gone; its jobs stay. Returns what it was."""
    before = await find(store, tenant_id, name)
    if not await store.drop_schedule(tenant_id, name):
        raise _unknown(name)
    return before


@acknowledged
async def run_now(store: Store, tenant_id: int, name: str, by: str) -> int:
    """Enqueues its job out of turn, paused or not; its ticks stay as they are. Returns the job's key."""
    schedule = await find(store, tenant_id, name)
    (key,) = await store.enqueue([_job(schedule, await store.now(), by)])
    return key


async def fire(store: Store) -> int:
    """Enqueues what is due and moves its schedules on, in one write: whoever dies when, each tick is fired once.
    Returns how many schedules moved; the rest, if there are more, is left to the next call."""
    return await store.fire_schedules(plan, MOST_SCHEDULES, MOST_JOBS)


def plan(schedule: Schedule, now: int) -> Plan | None:
    """None for a schedule that this program cannot read, such as one in a zone this machine does not know: others may,
    and the rest must not wait for it."""
    try:
        ticks, next_at = due(schedule.rule, schedule.catch_up, schedule.next_at, schedule.last_at, now)
        jobs = [_job(schedule, tick, SCHEDULER) for tick in ticks]
        return Plan(jobs, next_at, max(ticks, default=None))
    except Exception as error:  # whatever somebody wrote into the table by hand
        _complain(schedule.name, str(error))
        return None


@lru_cache(maxsize=1_000)
def _complain(name: str, error: str) -> None:
    """Once in a process: the schedule stays due, and is looked at again and again."""
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
    """The job of a schedule: one of a kind, or one that starts a flow of a template."""
    if (kind is None) == (template is None):
        raise BadInput(what="a schedule starts one of both: say a kind of job, or the template of a flow")
    if template is not None:
        return await start_of_template(store, tenant_id, template, inputs, queue)
    check_kind(kind or "")
    return new_job(tenant_id, kind or "", json.dumps(dict(payload)), queue=queue)


async def start_of_template(
    store: Store, tenant_id: int, named: str, inputs: Mapping[str, Any], queue: str = "default"
) -> NewJob:
    """The job of a schedule that starts a flow of a template; what is wrong with its inputs is said now, not at each
    tick."""
    template = await templates.find(store, tenant_id, named)
    bound(templates.flow_of(template), inputs)
    return start_of(tenant_id, named, inputs, queue)


def start_of(tenant_id: int, flow: str, inputs: Mapping[str, Any], queue: str) -> NewJob:
    """The job of a schedule that starts a flow: a template by its id, or the newest of a name."""
    said = json.dumps({"flow": flow, "inputs": dict(inputs)}, separators=(",", ":"))
    secrecy.insist(f"what flow {flow} is given", said)
    return new_job(tenant_id, START, said, queue=queue)


def flow_key(correlation_id: str) -> str | None:
    """The key of the flow that a tick starts, from what the tick's job belongs to; none if it belongs to no tick.

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
    """Its next ticks, in its own zone."""
    first = [schedule.next_at] if schedule.paused_at is None else []
    ticks = first + next_ticks(schedule.rule, max(schedule.next_at, now) if first else now, SHOWN_TICKS - len(first))
    return [local(schedule, tick) for tick in ticks]


def local(schedule: Schedule, tick: int) -> str:
    """A tick in the zone of its schedule."""
    epoch = datetime.fromtimestamp(0, zone("UTC"))
    return (epoch + timedelta(microseconds=tick)).astimezone(zone(schedule.tz)).isoformat(" ", "seconds")


async def flow_named(store: Store, schedule: Schedule) -> str | None:
    """What the flow is called that a schedule starts, if it starts one; by its template if that is gone."""
    said = json.loads(schedule.payload) if schedule.kind == START else None
    flow = said.get("flow") if isinstance(said, dict) else None
    if flow is None:
        return None
    try:
        return (await templates.find(store, schedule.tenant_id, str(flow))).name
    except NotFound:
        return str(flow)


def every(us: int) -> str:
    """How often something is done.

    >>> every(2_000_000), every(1_500_000), every(900_000_000)
    ('every 2 s', 'every 1.5 s', 'every 15m')
    """
    return f"every {us / 1_000_000:g} s" if us < 60_000_000 else f"every {words.took(us)}"


def as_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule with everything that is known of it."""
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

"""Limits: declare them, and show their usage and waiting jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import check_name
from keptwork.errors import BadInput
from keptwork.jobs.concurrency import ALL, Throttle
from keptwork.store import NewJob, QueueSummary, Store
from keptwork.store.contract.jobs_list import LEASED
from keptwork.store.contract.records import HELD_BY_LIMIT, LimitKey, LimitRule, LimitUse

LONGEST_PLACE = 10


class Limit(NamedTuple):
    """A limit key with its rule, usage, waiting jobs, and the next start that its rate allows."""

    key: LimitKey
    rule: LimitRule
    running: int
    waiting: int
    next_at: int | None


def rule(what: str, name: str, throttle: Throttle | None) -> LimitRule:
    """Return a rule for the store. Without a throttle it limits nothing."""
    if throttle is None:
        return LimitRule(what, name)
    return LimitRule(what, name, throttle.most, throttle.rate, throttle.window_us, throttle.per)


async def declare(store: Store, rules: Sequence[LimitRule]) -> None:
    """Write the rules that differ from the stored ones, if any."""
    known = {(one.what, one.name): one for one in await store.limit_rules()}
    new = [one for one in rules if known.get((one.what, one.name), LimitRule(one.what, one.name)) != one]
    if new:
        await store.declare_limits(new)


async def limit_queue(store: Store, name: str, throttle: Throttle | None) -> None:
    """Limit a queue across all workers, from the next claim on. None removes its limit."""
    check_name("queue", name)
    await declare(store, [rule("queue", name, throttle)])


async def key_of(store: Store, kind: str, arguments: str) -> str | None:
    """Return the limit key of a job of this kind, by the rule that its workers have declared.

    Return None if there is no rule. The arguments, as JSON, are parsed only if there is one.
    """
    for one in await store.limit_rules():
        if (one.what, one.name) == ("job", kind):
            return Throttle(one.most, one.rate, one.window_us, one.per).key(kind, json.loads(arguments))
    return None


async def under_limit(store: Store, job: NewJob) -> NewJob:
    """Return a job of a kind known only by name, with the limit that workers declared, if any."""
    key = await key_of(store, job.kind, job.payload)
    return job if key is None else job._replace(limit_key=key, held_by=HELD_BY_LIMIT)


async def listing(store: Store, tenant_id: int) -> list[Limit]:
    """List the limits with usage by a tenant, and declared limits without usage."""
    rules = {(one.what, one.name): one for one in await store.limit_rules()}
    uses = {LimitKey(use.tenant_id, use.key): use for use in await store.limit_uses(tenant_id)}
    for what, name in rules:
        key = f"queue:{name}" if what == "queue" else f"{ALL}:{name}"
        if what == "queue" or rules[what, name].per == ALL:
            uses.setdefault(LimitKey(0, key), LimitUse(0, key, 0, 0, None))
    return [_limit(key, uses[key], rules) for key in sorted(uses)]


class Page(NamedTuple):
    """A page of limits, and the cursor of the next page if there are more."""

    limits: list[Limit]
    next: str | None


async def page(store: Store, tenant_id: int, *, after: str | None = None, limit: int = 50) -> Page:
    """Return one page of limits. The cursor is an offset, because limits are few and their keys can be long."""
    if after is not None and not (after.isdecimal() and len(after) < LONGEST_PLACE):
        raise BadInput(what=f"{after!r} is no place in a list of limits; take one from an earlier answer")
    found, start = await listing(store, tenant_id), int(after or 0)
    end = start + limit
    return Page(found[start:end], str(end) if len(found) > end else None)


def _limit(key: LimitKey, use: LimitUse, rules: dict[tuple[str, str], LimitRule]) -> Limit:
    what, name = ("queue", key.key.removeprefix("queue:")) if key.key.startswith("queue:") else ("job", key.kind)
    return Limit(key, rules.get((what, name), LimitRule(what, name)), use.running, use.waiting, use.next_at)


async def holding(store: Store, job: dict[str, Any]) -> Limit | None:
    """Return the limit that holds a job, from the job's whole row, or None if no limit does."""
    if job["held_by"] != HELD_BY_LIMIT or job["limit_key"] is None:
        return None
    wanted = LimitKey.of(job["tenant_id"], job["limit_key"])
    return next((one for one in await listing(store, job["tenant_id"]) if one.key == wanted), None)


async def of_queue(store: Store, tenant_id: int, name: str) -> Limit | None:
    """Return the limit of a queue with its usage, or None if it has none."""
    key = f"queue:{name}"
    return next((one for one in await listing(store, tenant_id) if one.key.key == key), None)


def as_json(limit: Limit) -> dict[str, Any]:
    """Return a limit in the form that commands print."""
    return {
        "key": limit.key.key,
        "scope": "all tenants" if limit.key.tenant_id == 0 else "tenant",
        "most": limit.rule.most,
        "rate": limit.rule.rate,
        "window_us": limit.rule.window_us,
        "running": limit.running,
        "waiting": limit.waiting,
        "next_at": None if limit.next_at is None else rfc3339(limit.next_at),
    }


# Queues: list, pause, and resume them.


async def list_queues(store: Store, tenant_id: int) -> list[QueueSummary]:
    """List every queue that has jobs or was ever paused."""
    return await store.queues(tenant_id)


async def pause(store: Store, tenant_id: int, name: str) -> QueueSummary:
    """Pause a queue from the next claim on, and return it as it was before. Running jobs continue."""
    return await _set_paused(store, tenant_id, name, True)


async def resume(store: Store, tenant_id: int, name: str) -> QueueSummary:
    """Resume a queue from the next claim on, and return it as it was before."""
    return await _set_paused(store, tenant_id, name, False)


async def _set_paused(store: Store, tenant_id: int, name: str, paused: bool) -> QueueSummary:
    if not name.strip() or not name.isprintable():
        raise BadInput(what=f"{name!r} is no queue; list them with: keptwork queues list")
    before = {queue.name: queue for queue in await store.queues(tenant_id)}
    await store.set_queue_paused(name, paused, tenant_id)
    return before.get(name, QueueSummary(name, {}, None, None))


def queued(queue: QueueSummary) -> int:
    """Return the number of queued jobs, for any reason."""
    return queue.jobs.get(JOB.initial.name, 0)


def at_work(queue: QueueSummary) -> int:
    """Return the number of jobs that workers hold."""
    return sum(queue.jobs.get(state, 0) for state in LEASED)


def queue_json(queue: QueueSummary) -> dict[str, Any]:
    """Return a queue with a count for every state."""
    return {
        "name": queue.name,
        "jobs": {state.name: queue.jobs.get(state.name, 0) for state in JOB.states},
        "oldest_due_at": None if queue.oldest_due is None else rfc3339(queue.oldest_due),
        "paused_at": None if queue.paused_at is None else rfc3339(queue.paused_at),
    }

"""Explain why a job is not moving: each cause, most immediate first, and when it clears.

`_situation` reads everything that is needed. The checks decide on it without I/O, and each looks for one cause.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from keptwork.agents import budget_caps, budget_rules
from keptwork.core import ids
from keptwork.core.durations import LONGEST_US, rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, JOB, WORKER
from keptwork.core.lifecycles.breaker import CLOSED, OPEN
from keptwork.core.lifecycles.job import QUEUED
from keptwork.core.lifecycles.worker import PAUSED
from keptwork.core.validation import OWN_KINDS, OWN_QUEUES
from keptwork.flows.compiled import KINDS
from keptwork.jobs import breakers, limits, queries
from keptwork.jobs.limits import Limit
from keptwork.store import JobFilter, Store
from keptwork.store.contract.budgets import Budget
from keptwork.store.contract.crews import A_CREW, HELD_BY_QUOTA
from keptwork.store.contract.records import HELD_BY_LIMIT, Place
from keptwork.store.contract.waits import ALL_CHILDREN, ANY_CHILD, APPROVAL, EVENT
from keptwork.store.contract.waits_approvals import Approval
from keptwork.workers import commands as workers

Row = dict[str, Any]

MOST_AHEAD = 1_000
USUAL_QUEUE = "default"
_NEVER = 1 << 62
"""The end of a wait without an end."""


class Cause(StrEnum):
    """A cause that can keep a job from moving."""

    ENDED = "ended"
    RUNNING = "running"
    ASKED_TO_STOP = "asked_to_stop"
    ORPHANED = "orphaned"
    LEASE_OVER = "lease_over"
    ASLEEP = "asleep"
    CHILDREN = "children"
    CREW = "crew"
    QUOTA = "quota"
    EVENT = "event"
    APPROVAL = "approval"
    LIMIT = "limit"
    BREAKER = "breaker"
    BUDGET = "budget"
    VERSION = "version"
    HELD = "held"
    BACKOFF = "backoff"
    SNOOZED = "snoozed"
    GIVEN_BACK = "given_back"
    DELAYED = "delayed"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_LIMIT = "queue_limit"
    NO_WORKER = "no_worker"
    WORKERS_PAUSED = "workers_paused"
    NO_HANDLER = "no_handler"
    IN_LINE = "in_line"
    DUE = "due"


CLEARS, COMES, EXPIRES = "that clears", "that is", "without an answer it expires, which is a no,"


class Reason(NamedTuple):
    """One cause: a sentence, when it clears automatically, and what an operator can do about it.

    `then` says what happens at that time, in words that precede it.
    """

    cause: StrEnum
    says: str
    clears_at: int | None = None
    todo: str | None = None
    then: str = CLEARS


class Situation(NamedTuple):
    """Everything at one moment that affects whether a job moves.

    `workers` are the live workers that serve its queue. `later` has the jobs that rerun it.
    """

    job: Row
    now: int
    place: Place = Place(None, 0, 0)
    owner: Row | None = None
    workers: tuple[Row, ...] = ()
    asked: tuple[Approval, ...] = ()
    limit: Limit | None = None
    queue_limit: Limit | None = None
    later: tuple[int, ...] = ()
    breaker: Row | None = None
    budget: Budget | None = None
    waits: tuple[tuple[str, int | None], ...] = ()


async def why(store: Store, tenant_id: int, id: str) -> tuple[Row, list[Reason]]:
    """Return a job and the causes that keep it. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    job = await queries.find(store, tenant_id, id)
    return job, [await _of_command(store, job, one) for one in reasons(await _situation(store, job))]


async def _of_command(store: Store, job: Row, reason: Reason) -> Reason:
    """Suggest resuming the flow if the job's queue belongs to a `keptwork run` command.

    No worker serves that queue any more.
    """
    nobody = reason.cause in (Cause.NO_WORKER, Cause.LEASE_OVER)
    if not nobody or job["tree_id"] is None or not job["queue"].startswith(OWN_QUEUES):
        return reason
    flows = [
        public_id(kind.flow.name, row["id"])
        for kind in KINDS.values()
        for row in await store.rows(kind.flow, [job["tree_id"]], ("id",))
    ]
    return reason._replace(todo=f"keptwork run --resume {flows[0]}") if flows else reason


async def _situation(store: Store, job: Row) -> Situation:
    tenant_id, key = job["tenant_id"], job["id"]
    later = await store.jobs(JobFilter(tenant_id, redriven_from=(key,)), newest_first=False, columns=("id",))
    asked = await store.approvals(tenant_id, job=key) if (job["waits_for"] or "").startswith(APPROVAL) else []
    waits = await store.open_waits(tenant_id, key) if job["waits_for"] else []
    return Situation(
        job,
        await store.now(),
        await store.place(tenant_id, key) or Place(None, 0, 0),
        None if job["owner"] is None else await store.get(WORKER, job["owner"], None),
        tuple(await workers.serving(store, job["queue"])),
        tuple(asked),
        await limits.holding(store, job),
        await limits.of_queue(store, tenant_id, job["queue"]),
        tuple(row["id"] for row in later),
        await breakers.holding(store, job),
        await budget_caps.holding(store, job),
        tuple(waits),
    )


def reasons(situation: Situation) -> list[Reason]:
    """Return all causes, most immediate first. There is always at least one."""
    found = [reason for check in CHECKS if (reason := check(situation)) is not None]
    return [*_waiting(situation), *found] or [_next(situation)]


# --- the job has finished, or a worker holds it


def _ended(situation: Situation) -> Reason | None:
    job = situation.job
    if not JOB.state(job["state"]).final:
        return None
    why = ": ".join(dict.fromkeys(text for text in (job["reason"], job["error"]) if text))
    again = situation.later and f"it was run again as {public_id(JOB.name, situation.later[-1])}"
    return Reason(
        Cause.ENDED,
        f"it has ended as {job['state']}{f' ({why})' if why else ''}{f'; {again}' if again else ''}",
        todo=None
        if again or job["state"] not in queries.RETRIED
        else f"keptwork {_to_run_again(job)} {_id(situation)}",
    )


def _to_run_again(job: Row) -> str:
    return "dead-letters redrive" if job["state"] == JOB.move("dead_letter").target.name else "jobs retry"


def _with_a_worker(situation: Situation) -> Reason | None:
    job, now = situation.job, situation.now
    if job["lease_until"] is None or JOB.state(job["state"]).final or job["state"] == QUEUED.name:
        return None
    holder, ends = _holder(situation), job["lease_until"]
    if ends <= now:
        says = f"the lease of {holder} is over, and no worker has taken the job back yet; any that runs will"
        return Reason(Cause.LEASE_OVER, says, todo=to_work(job["kind"], job["queue"]))
    if _lost(situation):
        says = f"{holder} has gone; the job is taken back when its lease ends"
        return Reason(Cause.ORPHANED, says, ends)
    if job["cancel_requested_at"] is not None:
        says = f"it was asked to stop, and {holder} gives it time to"
        return Reason(Cause.ASKED_TO_STOP, says, None, f"keptwork jobs cancel {_id(situation)} --hard")
    # The job of a step has extra starts, for crashes of workers. Their number would only confuse.
    most = f" of {job['max_attempts']}" if job["step_id"] is None else ""
    says = f"{holder} is at it, in attempt {job['attempts']}{most}; its lease is renewed meanwhile"
    return Reason(Cause.RUNNING, says)


def _holder(situation: Situation) -> str:
    owner, id = situation.owner, public_id(WORKER.name, situation.job["owner"] or 0)
    return (
        f"worker {id}" if owner is None else f"worker {owner['name']} ({id}, on {owner['host'] or 'another machine'})"
    )


def _lost(situation: Situation) -> bool:
    """Return whether the job's worker has ended or is unresponsive."""
    owner = situation.owner
    return owner is None or WORKER.state(owner["state"]).final or workers.is_silent(owner, situation.now)


# --- the job waits, or is held


def _waiting(situation: Situation) -> list[Reason]:
    """Return a reason for each thing the job waits for: any one of them wakes it."""
    job = situation.job
    if job["state"] != QUEUED.name or not job["waits_for"]:
        return []
    if job["run_at"] <= situation.now and not job["held_by"]:
        return []
    if not situation.waits:
        return [_one_wait(situation, job["waits_for"])]
    one_by_one = [(name, _at(situation, until)) for name, until in situation.waits]
    return list(dict.fromkeys(_one_wait(one, name) for name, one in one_by_one))


def _at(situation: Situation, until: int | None) -> Situation:
    """Return the situation of a job that waits until this time."""
    return situation._replace(job={**situation.job, "run_at": _NEVER if until is None else until})


def _one_wait(situation: Situation, waits_for: str) -> Reason:
    job = situation.job
    if waits_for in (ALL_CHILDREN, ANY_CHILD):
        return _for_children(situation)
    if waits_for.startswith(A_CREW):
        return _for_crew(waits_for.removeprefix(A_CREW))
    if waits_for.startswith(EVENT):
        return _for_event(situation, waits_for.removeprefix(EVENT))
    if waits_for.startswith(APPROVAL):
        return _for_approval(situation, waits_for.removeprefix(APPROVAL))
    return Reason(Cause.ASLEEP, "its handler sleeps", job["run_at"])


def _for_children(situation: Situation) -> Reason:
    some = f"{situation.place.children} of the jobs it spawned" if situation.place.children else "the jobs it spawned"
    return Reason(Cause.CHILDREN, f"it waits for {some} to end", None, f"keptwork jobs show {_id(situation)}")


def _for_crew(id: str) -> Reason:
    return Reason(Cause.CREW, f"it waits for the crew {id}", None, f"keptwork why {id}")


def _for_event(situation: Situation, name: str) -> Reason:
    says, todo = f"it waits for the event {name!r}", f"keptwork jobs signal {_quoted(name)}"
    return Reason(Cause.EVENT, says, _patience(situation), todo, "it gives that up")


def _for_approval(situation: Situation, name: str) -> Reason:
    asked = next((one for one in situation.asked if one.public_id == name), None)
    if asked is None:
        return Reason(Cause.APPROVAL, f"it waits for the approval {name}", _patience(situation), None, EXPIRES)
    says = f"it waits for somebody ({asked.scope or 'anyone'}) to approve: {asked.question}"
    return Reason(Cause.APPROVAL, says, asked.expires_at, f"keptwork approvals approve {name}", EXPIRES)


def _patience(situation: Situation) -> int | None:
    """Return when the job stops waiting, or None if that time is so far off that it means never."""
    at: int = situation.job["run_at"]
    return at if at - situation.now < LONGEST_US // 2 else None


def _held(situation: Situation) -> Reason | None:
    job = situation.job
    if job["state"] != QUEUED.name or not job["held_by"]:
        return None
    what, _, name = job["held_by"].partition(":")
    if what == HELD_BY_QUOTA:
        return _for_quota(job)
    if what == "version":
        says = f"it began under a version of its handler that no worker has: {name}"
        return Reason(Cause.VERSION, says, None, f"start a worker whose application still declares {name}")
    if what == HELD_BY_LIMIT and situation.limit is not None:
        return Reason(
            Cause.LIMIT, f"the limit {_filled(situation.limit)}", situation.limit.next_at, "keptwork limits list"
        )
    if situation.breaker is not None:
        return _broken(situation, situation.breaker)
    if situation.budget is not None:
        return _unpaid(situation, situation.budget)
    return Reason(Cause.HELD, f"it is held back by {job['held_by']}")


def _broken(situation: Situation, breaker: Row) -> Reason:
    name, says = breaker["name"], breakers.described(breaker)
    if breaker["state"] == CLOSED.name:
        return Reason(Cause.BREAKER, f"the breaker {name} is closed again, and workers let go what it held")
    todo = f"keptwork breakers reset {_quoted(name)} --reason TEXT"
    if breaker["state"] == OPEN.name and breaker["probe_at"] <= situation.now:
        return Reason(Cause.BREAKER, f"{says}; it has cooled down, and the next job that needs it tries", None, todo)
    if breaker["state"] == OPEN.name:
        return Reason(Cause.BREAKER, f"{says}; it cools down before a job may try", breaker["probe_at"], todo)
    trying = "the next job" if breaker["probe_job"] is None else public_id(JOB.name, breaker["probe_job"])
    return Reason(Cause.BREAKER, f"{says}; {trying} tries whether it works", None, todo)


def _unpaid(situation: Situation, budget: Budget) -> Reason:
    todo = budget_caps.command(budget)
    if budget_rules.may_go(budget, situation.now) != 0:
        return Reason(Cause.BUDGET, f"{budget_rules.standing(budget)}, and workers let go what fits", None, todo)
    says = budget_rules.refusal(budget, budget.wanted_micros or 0)
    return Reason(Cause.BUDGET, says, budget_rules.over_at(budget), todo)


def _for_quota(job: Row) -> Reason | None:
    """Return the cause for a share that waits for a worker of its quota.

    A share that waits for a sub-crew also has no worker, but then the wait is the only cause.
    """
    if job["waits_for"]:
        return None
    says = "it is a share that could go on, and waits until its crew's depth has a worker free"
    return Reason(Cause.QUOTA, says, None, f"keptwork crews show {public_id(CREW.name, job['crew_id'])}")


def _filled(limit: Limit) -> str:
    most, rate = limit.rule.most, limit.rule.rate
    told = [f"{limit.running} of {most} are at work" if most is not None else f"{limit.running} are at work"]
    if rate is not None:
        told.append(f"{rate} may start in {(limit.rule.window_us or 0) / 1_000_000:g} s")
    return f"{limit.key.key} holds it back: {', and '.join(told)}"


def _due_later(situation: Situation) -> Reason | None:
    job = situation.job
    if job["state"] != QUEUED.name or job["run_at"] <= situation.now or job["waits_for"]:
        return None
    at, tries = job["run_at"], f"attempt {job['attempts']} of {job['max_attempts']}"
    if job["move"] == "retry":
        return Reason(
            Cause.BACKOFF, f"{tries} failed ({job['error'] or job['reason']}), and it waits to be retried", at
        )
    if job["move"] == "snooze":
        return Reason(Cause.SNOOZED, "its handler put it off", at)
    if job["move"] == "release":
        return Reason(Cause.GIVEN_BACK, f"a worker gave it back: {job['reason']}", at)
    return Reason(Cause.DELAYED, "it was enqueued for later", at)


# --- no worker claims it


def _queue_paused(situation: Situation) -> Reason | None:
    job = situation.job
    if job["state"] != QUEUED.name or situation.place.paused_at is None:
        return None
    says = f"its queue {job['queue']!r} has been paused since {rfc3339(situation.place.paused_at)}"
    return Reason(Cause.QUEUE_PAUSED, says, None, f"keptwork queues resume {_quoted(job['queue'])}")


def _nobody(situation: Situation) -> Reason | None:
    job = situation.job
    if job["state"] != QUEUED.name:
        return None
    silent = [row for row in situation.workers if workers.is_silent(row, situation.now)]
    found = [row for row in situation.workers if row not in silent]
    if not found:
        last = max((row["seen_at"] for row in silent), default=None)
        gone = f"; the last that did was heard of at {rfc3339(last)}" if last is not None else ""
        says = f"no worker serves its queue {job['queue']!r}{gone}"
        return Reason(Cause.NO_WORKER, says, None, to_work(job["kind"], job["queue"]))
    knowing = [row for row in found if job["kind"] in workers.serves(row)["kinds"]]
    if not knowing:
        says = f"none of the {len(found)} workers of its queue has a handler for {job['kind']!r}"
        return Reason(Cause.NO_HANDLER, says, None, "start a worker whose application declares it")
    if all(worker["state"] == PAUSED.name for worker in knowing):
        says = f"every worker that could take it is paused ({', '.join(worker['name'] for worker in knowing)})"
        return Reason(
            Cause.WORKERS_PAUSED, says, None, f"keptwork workers resume {public_id(WORKER.name, knowing[0]['id'])}"
        )
    return None


def _queue_full(situation: Situation) -> Reason | None:
    limit = situation.queue_limit
    if situation.job["state"] != QUEUED.name or limit is None:
        return None
    full = limit.rule.most is not None and limit.running >= limit.rule.most
    if not full and limit.next_at is None:
        return None
    return Reason(Cause.QUEUE_LIMIT, f"the limit {_filled(limit)}", limit.next_at, "keptwork limits list")


def _next(situation: Situation) -> Reason:
    if situation.place.ahead:
        count = f"{MOST_AHEAD:,} or more" if situation.place.ahead >= MOST_AHEAD else f"{situation.place.ahead:,}"
        return Reason(Cause.IN_LINE, f"{count} jobs of its queue are due before it")
    return Reason(Cause.DUE, "nothing is in its way: a worker takes it with its next claim")


CHECKS: tuple[Callable[[Situation], Reason | None], ...] = (
    _ended,
    _with_a_worker,
    _held,
    _due_later,
    _queue_paused,
    _nobody,
    _queue_full,
)


def to_work(kind: str | None, queue: str | None = None) -> str:
    """Return the command that starts a worker for such a job. Every worker can run steps of flows."""
    queues = "" if queue is None else f" --queues {_quoted(queue)}"
    if kind is None or not kind.startswith(OWN_KINDS):
        return f"keptwork work MODULE:APP{queues}"
    where = ", where what it calls can be imported" if kind == f"{OWN_KINDS}call" else ""
    return f"keptwork work{queues if queue != USUAL_QUEUE else ''}{where}"


def as_json(reason: Reason) -> dict[str, Any]:
    """Return a cause in the form that commands print."""
    clears = None if reason.clears_at is None else rfc3339(reason.clears_at)
    return {"cause": str(reason.cause), "says": reason.says, "clears_at": clears, "todo": reason.todo}


def _id(situation: Situation) -> str:
    return ids.public(JOB.prefix, situation.job["id"])


def _quoted(text: str) -> str:
    """Quote text for a shell, to show it in a command."""
    return shlex.quote(text)

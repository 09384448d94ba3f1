"""Move agent jobs: the moves that a worker makes, and those that follow from the job.

The worker moves an agent job from state to state, each time in a transaction that checks that it still holds the job.
The other moves follow from the job's moves in the same transaction: a retry of the job retries the agent job, and the
end of the job ends the agent job and writes its audit record. Agent jobs whose job ended without such a transaction are
repaired later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from keptwork.agents import budgets
from keptwork.agents.plan import Status
from keptwork.core import ids
from keptwork.core.lifecycles import AGENT, JOB, Change, Verb, decide, insist
from keptwork.core.lifecycles.agent import END
from keptwork.core.lifecycles.job import SUCCEEDED
from keptwork.errors import LeaseLost
from keptwork.store import Job, Store, Transaction
from keptwork.store.contract.agents import AgentAudit

AGENT_KIND, SHARE_KIND = "keptwork.agent", "keptwork.share"
_KINDS = frozenset((AGENT_KIND, SHARE_KIND))
_KIND = itemgetter(Change._fields.index("kind"))
_FOLLOWED = frozenset((Verb.RETRY, Verb.SUCCEED, Verb.FAIL, Verb.DEAD_LETTER, Verb.CANCEL))
ACTOR = "agents"
CRASHES = 10
"""Maximum crashes of workers per agent job. Each costs the job an attempt, but no retry."""

Row = dict[str, Any]


# --- what happens to the job


def concerned(changes: Iterable[Change]) -> bool:
    """Return whether any of these changes might affect an agent job. This check is cheap."""
    return not _KINDS.isdisjoint(map(_KIND, changes))


async def write(tx: Transaction, changes: Sequence[Change], *, follow: bool = True) -> list[Change]:
    """Write moves, and close the calls to models of each agent job whose claim they end. Return the late changes. The
    jobs are locked before the time is read: a call that another session reserves or closes precedes the move. Agents
    follow their jobs; a job that was delayed, released or lost with its worker leaves its agent in its state."""
    if not concerned(changes):
        return await tx.apply(changes)
    jobs = {id for change in changes if change.lifecycle is JOB for id in (change.id, change.parent_id or change.id)}
    await tx.lock_jobs(sorted(jobs))
    late = await tx.apply(changes)
    moved = {change.id: change for change in changes if change.kind in _KINDS and change not in late}
    await budgets.close_calls(tx, sorted(moved))
    told = {id: change for id, change in moved.items() if follow and change.move.verb in _FOLLOWED}
    for row in await tx.agents_of_jobs(sorted(told)) if told else ():
        await _follow(tx, row, told[row["job_id"]])
    return late


async def _follow(tx: Transaction, row: Row, change: Change) -> None:
    """Move an agent job as its job has moved. A job's move that is sent again changes nothing."""
    verb = change.move.verb
    if AGENT.state(row["state"]).final or (verb is Verb.RETRY and row["job_seq"] == change.seq):
        return
    said = change.values.get("error") or change.reason
    facts: dict[str, Any] = {"actor": change.actor, "cause": ids.public(JOB.prefix, change.id)}
    if verb is Verb.RETRY:
        again = decide(AGENT, row, Verb.RETRY, reason=said, values=_left(row, job_seq=change.seq), **facts)
        if isinstance(again, Change):  # in other states the agent job continues as it is
            await _write(tx, again)
    elif verb is Verb.SUCCEED and row["state"] == END.name:
        await _end(tx, row, Verb.SUCCEED, None, facts)
    else:
        await _end(tx, row, Verb.FAIL, said or f"its job was {change.move.target.name}", facts)


async def _end(tx: Transaction, row: Row, verb: Verb, reason: str | None, facts: dict[str, Any]) -> None:
    """End an agent job and write its audit record."""
    await _write(tx, insist(decide(AGENT, row, verb, reason=reason, values=_left(row), **facts)))
    (ended,) = await tx.rows(AGENT, [row["id"]])
    started = [job["started_at"] for job in await tx.rows(JOB, [row["job_id"]], ("started_at",))]
    await tx.put_agent_audit(record(ended, (started or [None])[0]))


def record(row: Row, started_at: int | None = None) -> AgentAudit:
    """Return the audit record of an agent job that has finished.

    It starts with its job. If the job never started, the creation time of the agent job is used.
    """
    status = Status.FAILED if row["move"] == AGENT.move("failure").trigger else Status.COMPLETED
    return AgentAudit(
        agent_id=row["id"],
        tenant_id=row["tenant_id"],
        job_id=row["job_id"],
        description=row["description"],
        status=status,
        reason=row["reason"],
        state_transitions=row["state_history"],
        agent=None if row["model"] is None else json.dumps(chosen(row)),
        retry_count=row["retry_count"],
        max_retries=row["max_retries"],
        calls=row["calls"],
        cost_micros=row["cost_micros"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        llm_response=row["llm_response"],
        started_at=row["created_at"] if started_at is None else started_at,
        completed_at=row["completed_at"],
    )


def chosen(row: Row) -> dict[str, Any]:
    """Return the skill, tier, provider, and model of an agent job, and the reasons for them."""
    reasons = None if row["reasons"] is None else json.loads(row["reasons"])
    return {**{name: row[name] for name in ("skill", "tier", "provider", "model")}, "reasons": reasons}


# --- what its worker does


async def advance(store: Store, job: Job, row: Row, **choice: Any) -> Row:
    """Move an agent job to its next state, store what was chosen for it, and return the new row.

    Raise `LeaseLost` if the worker no longer holds the job.
    """

    async def work(tx: Transaction) -> Row:
        await insist_held(tx, job)
        (seen,) = await tx.rows(AGENT, [row["id"]])
        if seen["seq"] == row["seq"] + 1 and seen["actor"] == actor:
            return seen  # repeated after a lost response: it has moved already
        if choice:
            await tx.amend(AGENT, [row["id"]], row["tenant_id"], **choice)
        await _write(tx, insist(decide(AGENT, row, Verb.SUCCEED, actor=actor, values=_left(row))))
        return (await tx.rows(AGENT, [row["id"]]))[0]

    actor = f"w:{job.owner}"

    return await store.atomically(work, 3)


async def amend(store: Store, job: Job, row: Row, **choice: Any) -> Row:
    """Change what was chosen for an agent job, and return the new row."""

    async def work(tx: Transaction) -> Row:
        await insist_held(tx, job)
        await tx.amend(AGENT, [row["id"]], row["tenant_id"], **choice)
        return (await tx.rows(AGENT, [row["id"]]))[0]

    return await store.atomically(work, 2)


async def insist_held(tx: Transaction, job: Job) -> None:
    """Raise `LeaseLost` if the job was lost. Otherwise the worker holds it until the transaction ends."""
    if not await tx.still_claimed(job):
        raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="advance")


# --- repairs


async def mend(store: Store, limit: int) -> int:
    """End the agent jobs whose job ended without moving them, and close their calls.

    Return how many there were.
    """
    await budgets.close_abandoned(store, limit)
    rows = await store.agents_left_behind(limit)
    for row in rows:
        await store.atomically(lambda tx, row=row: _caught_up(tx, row))  # type: ignore[misc]
    return len(rows)


async def _caught_up(tx: Transaction, row: Row) -> None:
    (seen,) = await tx.rows(AGENT, [row["id"]])
    if AGENT.state(seen["state"]).final:
        return
    jobs = await tx.rows(JOB, [row["job_id"]], ("state", "reason", "error"))
    facts = {"actor": ACTOR, "cause": ids.public(JOB.prefix, row["job_id"])}
    if seen["state"] == END.name and [job["state"] for job in jobs] == [SUCCEEDED.name]:
        await _end(tx, seen, Verb.SUCCEED, None, facts)
        return
    said = [text for job in jobs for text in (job["error"], job["reason"], f"its job is {job['state']}") if text]
    await _end(tx, seen, Verb.FAIL, said[0] if said else "its job is gone", facts)


# --- in a transaction


def _left(row: Row, **more: Any) -> dict[str, Any]:
    """Return the values of a move, with the state that it leaves added to the history."""
    return {"state_history": json.dumps([*json.loads(row["state_history"]), row["state"]]), **more}


async def _write(tx: Transaction, change: Change) -> None:
    if await tx.apply([change]):
        id = ids.public(AGENT.prefix, change.id)
        raise LeaseLost(lifecycle=AGENT.name, id=id, trigger=change.move.trigger)

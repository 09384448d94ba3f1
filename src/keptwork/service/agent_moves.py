"""What moves agent jobs: the worker that carries one out, and the moves of the job under it.

The worker makes the moves from state to state, each in a transaction that sees to it that the job is still its own. The
rest follows from what becomes of the job, in that transaction: a retry of the job is a retry of the agent, and with the
end of the job it ends, and leaves its record. What ends a job without telling anyone is caught up with by `mend`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from keptwork import ids
from keptwork.agent.next import Status
from keptwork.errors import LeaseLost
from keptwork.lifecycle import AGENT, JOB, Change, Verb, decide, insist
from keptwork.lifecycle.agent import END
from keptwork.lifecycle.job import SUCCEEDED
from keptwork.service import budgets
from keptwork.store import Job, Store, Transaction
from keptwork.store.agents import AgentAudit

AGENT_KIND, SHARE_KIND = "keptwork.agent", "keptwork.share"
_KINDS = frozenset((AGENT_KIND, SHARE_KIND))
_KIND = itemgetter(Change._fields.index("kind"))
_FOLLOWED = frozenset((Verb.RETRY, Verb.SUCCEED, Verb.FAIL, Verb.DEAD_LETTER, Verb.CANCEL))
ACTOR = "agents"
CRASHES = 10
"""So often may a worker die of an agent job before it ends; each costs an attempt of the job, and no retry."""

Row = dict[str, Any]


# --- what happens to the job


def concerned(changes: Iterable[Change]) -> bool:
    """Whether any of these changes of jobs may mean something to an agent job: that is seen at once."""
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
    """Sent again after a lost answer, a move of a job finds its agent moved already."""
    verb = change.move.verb
    if AGENT.state(row["state"]).final or (verb is Verb.RETRY and row["job_seq"] == change.seq):
        return
    said = change.values.get("error") or change.reason
    facts: dict[str, Any] = {"actor": change.actor, "cause": ids.public(JOB.prefix, change.id)}
    if verb is Verb.RETRY:
        again = decide(AGENT, row, Verb.RETRY, reason=said, values=_left(row, job_seq=change.seq), **facts)
        if isinstance(again, Change):  # in the other states there is nothing to be tried again: they go on as they are
            await _write(tx, again)
    elif verb is Verb.SUCCEED and row["state"] == END.name:
        await _end(tx, row, Verb.SUCCEED, None, facts)
    else:
        await _end(tx, row, Verb.FAIL, said or f"its job was {change.move.target.name}", facts)


async def _end(tx: Transaction, row: Row, verb: Verb, reason: str | None, facts: dict[str, Any]) -> None:
    """With the last move goes the record of all."""
    await _write(tx, insist(decide(AGENT, row, verb, reason=reason, values=_left(row), **facts)))
    (ended,) = await tx.rows(AGENT, [row["id"]])
    started = [job["started_at"] for job in await tx.rows(JOB, [row["job_id"]], ("started_at",))]
    await tx.put_agent_audit(record(ended, (started or [None])[0]))


def record(row: Row, started_at: int | None = None) -> AgentAudit:
    """What is kept of an agent job that has ended. It started with its job; one that never did, when it was made."""
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
    """What was chosen for an agent job, and why."""
    reasons = None if row["reasons"] is None else json.loads(row["reasons"])
    return {**{name: row[name] for name in ("skill", "tier", "provider", "model")}, "reasons": reasons}


# --- what its worker does


async def advance(store: Store, job: Job, row: Row, **choice: Any) -> Row:
    """An agent job goes on to its next state, with what was chosen for it meanwhile; returns it as it is then. A worker
    that no longer holds the job changes nothing: `LeaseLost`."""

    async def work(tx: Transaction) -> Row:
        await insist_held(tx, job)
        (seen,) = await tx.rows(AGENT, [row["id"]])
        if seen["seq"] == row["seq"] + 1 and seen["actor"] == actor:
            return seen  # asked again after a lost answer: it has moved already
        if choice:
            await tx.amend(AGENT, [row["id"]], row["tenant_id"], **choice)
        await _write(tx, insist(decide(AGENT, row, Verb.SUCCEED, actor=actor, values=_left(row))))
        return (await tx.rows(AGENT, [row["id"]]))[0]

    actor = f"w:{job.owner}"

    return await store.atomically(work, 3)


async def amend(store: Store, job: Job, row: Row, **choice: Any) -> Row:
    """Something else is chosen for it; returns it as it is then."""

    async def work(tx: Transaction) -> Row:
        await insist_held(tx, job)
        await tx.amend(AGENT, [row["id"]], row["tenant_id"], **choice)
        return (await tx.rows(AGENT, [row["id"]]))[0]

    return await store.atomically(work, 2)


async def insist_held(tx: Transaction, job: Job) -> None:
    """Nobody takes the job away before the transaction is over; one that was taken is `LeaseLost`."""
    if not await tx.still_claimed(job):
        raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="advance")


# --- what nobody told


async def mend(store: Store, limit: int) -> int:
    """Ends agent jobs whose job was ended by somebody who did not tell them, and closes their calls; returns how
    many."""
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
    """What a move adds to the row: the state it leaves."""
    return {"state_history": json.dumps([*json.loads(row["state_history"]), row["state"]]), **more}


async def _write(tx: Transaction, change: Change) -> None:
    if await tx.apply([change]):
        id = ids.public(AGENT.prefix, change.id)
        raise LeaseLost(lifecycle=AGENT.name, id=id, trigger=change.move.trigger)

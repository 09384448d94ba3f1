"""Move crews inside the transaction of the cause, under one lock for all crews of a tenant.

A transaction that changes crews first locks their trees, then the tenant's crews, and only then touches rows. This
order prevents deadlocks, and keeps the counts against quotas valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from keptwork.agents import engine as agent_moves
from keptwork.core.ids import public_id, resolve
from keptwork.core.lifecycles import CREW, JOB, Change, decide, insist
from keptwork.core.lifecycles.crew import RUNNING
from keptwork.crews import plan as crew_plan
from keptwork.crews.plan import Ending, Share
from keptwork.errors import LeaseLost
from keptwork.store import Blob, NewJob, Store, Transaction
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.store.contract.crews import A_CREW, Quota
from keptwork.store.contract.records import HELD_BY_LIMIT

LARGEST_RESULT = 16 << 20
LARGEST_IN_ROW = 8 << 10
TRIES = 20
ACTOR = "crews"
_LAST_LOCK = (1 << 63) - 1
_SNOOZE = JOB.move("snooze")
_MOVE, _CREW_ID = (itemgetter(Change._fields.index(name)) for name in ("move", "crew_id"))
_RESULT = ("id", "tenant_id", "crew_id", "state", "reason", "error", "result", "result_hash")

Row = dict[str, Any]
Where = Store | Transaction


# --- what happens to shares


def concerned(changes: Sequence[Change]) -> bool:
    """Return whether any of these job changes might affect a crew. Nearly all do not, so this check is cheap."""
    return any(map(_CREW_ID, changes)) or (_SNOOZE in map(_MOVE, changes) and any(map(concerns, changes)))


def concerns(change: Change) -> bool:
    """Return whether a change is of a share, or of a job that starts to wait for a crew."""
    return change.crew_id is not None or bool(_crews_waited_for(change))


def locks(changes: Iterable[Change]) -> list[int]:
    """Return the locks that such changes need before they are written.

    Take them after the locks of the trees.
    """
    return [lock_of(change.tenant_id) for change in changes if concerns(change)]


def lock_of(tenant_id: int) -> int:
    """Return the lock of a tenant's crews. It is larger than the key of any flow, so it comes last."""
    return _LAST_LOCK - tenant_id


async def settled(tx: Transaction, changes: Sequence[Change]) -> list[Row]:
    """Move the crews that these job changes affect, and return those that have finished.

    Call it in the transaction that writes the changes. Crews whose shares finished move, jobs that wait for crews wake,
    and free workers go to the next crews. A change that leaves a share its worker, such as a retry, does not affect its
    crew. The returned rows are as they were before the end.
    """
    ended = {change.crew_id for change in changes if change.crew_id is not None and change.move.target.final}
    waiting = [change for change in changes if _crews_waited_for(change)]
    if not ended and not waiting:
        return []
    await _wake_at_once(tx, waiting)
    over = await look_at(tx, ended)
    for tenant_id in sorted({change.tenant_id for change in changes if concerns(change)}):
        await allocate(tx, tenant_id)
    return over


def _crews_waited_for(change: Change) -> list[int]:
    if change.move is not _SNOOZE:
        return []
    names = [name for name, *_ in change.values.get("waits") or [(change.values.get("waits_for") or "",)]]
    return [resolve(name.removeprefix(A_CREW)).key for name in names if name.startswith(A_CREW)]


async def _wake_at_once(tx: Transaction, waiting: Sequence[Change]) -> None:
    """Wake the jobs that started to wait for a crew which had finished meanwhile."""
    askers = {crew: change.id for change in waiting for crew in _crews_waited_for(change)}
    over = [row["id"] for row in await tx.rows(CREW, sorted(askers), ("id", "completed_at")) if row["completed_at"]]
    if over:
        await tx.wake_for_crews([askers[crew] for crew in over], over)


# --- the end of a crew


async def look_at(tx: Transaction, crews: Iterable[int]) -> list[Row]:
    """Finish those of these crews that have nothing left to do or cannot continue.

    Also finish parent crews that waited only for them. Return the rows of the finished crews as they were before.
    """
    over: list[Row] = []
    wanted = set(crews)
    while wanted:
        rows = [row for row in await tx.rows(CREW, sorted(wanted)) if row["state"] == RUNNING.name]
        wanted = set()
        for row in rows:
            end = await _ending(tx, row)
            if end is not None:
                over += await _end(tx, row, end)
                wanted |= {row["parent_id"]} - {None}
    return over


async def _ending(tx: Transaction, row: Row) -> Ending | None:
    shares = [Share(job.id, job.state) for job in await tx.shares([row["id"]])]
    inside = await tx.subcrews([row["id"]], unfinished_only=True)
    return crew_plan.ending(row["worker_count"], shares, len(inside))


async def _end(tx: Transaction, row: Row, end: Ending) -> list[Row]:
    """Finish a crew. If it fails, cancel everything inside it."""
    inside: list[Row] = []
    if not end.well:
        because = f"crew {public_id(CREW.name, row['id'])} failed"
        inside = await _call_off_inside(tx, [row], because, ACTOR)
    results = await _results(tx, row) if end.well else None
    if results is not None:
        await _moved(tx, row, "success", values=await _kept(tx, row, results))
    else:
        error = await _why(tx, end)
        await _moved(tx, row, "error", reason=error, values={"error": error})
    await _tell_asker(tx, row)
    return [row, *inside]


async def _results(tx: Transaction, row: Row) -> str | None:
    """Return the results of the shares in order, as a JSON list.

    Return None if the list is too large to store.
    """
    keys = [job.id for job in await tx.shares([row["id"]])]
    rows = {one["id"]: await whole(tx, one) for one in await tx.rows(JOB, keys, _RESULT)}
    text = f"[{','.join(rows[key]['result'] or 'null' for key in keys)}]"
    return text if len(text) <= LARGEST_RESULT else None


async def _kept(tx: Transaction, row: Row, text: str) -> dict[str, Any]:
    if len(text) <= LARGEST_IN_ROW:
        return {"result": text}
    blob = Blob.of(text.encode())
    await tx.keep_blob(row["tenant_id"], blob)
    return {"result": blob.note, "result_hash": blob.hash}


async def _why(tx: Transaction, end: Ending) -> str:
    if end.well:
        return f"the results of its shares are together over the limit of {LARGEST_RESULT >> 20} MiB"
    if end.failed is None:
        return "a share of it was deleted before its result was read"
    (job,) = await tx.rows(JOB, [end.failed.id], _RESULT)
    said = [text for text in (job["reason"], job["error"]) if text]
    return (
        f"share {public_id(JOB.name, job['id'])} ended {job['state']}: {': '.join(dict.fromkeys(said)) or 'no reason'}"
    )


async def _tell_asker(tx: Transaction, row: Row) -> None:
    if row["asker_id"] is not None:
        await tx.wake_for_crews([row["asker_id"]], [row["id"]])


# --- cancelling


async def call_off(tx: Transaction, row: Row, reason: str | None, actor: str | None) -> list[Row]:
    """Cancel a crew with everything inside it, and return the finished crews.

    The returned rows are as they were before.
    """
    inside = await _call_off_inside(tx, [row], reason, actor)
    await _moved(tx, row, "cancel", reason=reason, actor=actor)
    await _tell_asker(tx, row)
    over = [row, *inside]
    if row["parent_id"] is not None:
        over += await look_at(tx, [row["parent_id"]])
    return over


async def call_off_shares(tx: Transaction, row: Row, reason: str, actor: str | None) -> list[Row]:
    """Cancel the shares and sub-crews of a crew that was finished manually.

    Return the sub-crews that finished with it.
    """
    return await _call_off_inside(tx, [row], reason, actor)


async def _call_off_inside(tx: Transaction, crews: Sequence[Row], reason: str | None, actor: str | None) -> list[Row]:
    """Cancel all sub-crews at every depth, and all jobs. After that, no job is left that could create more."""
    inside: list[Row] = []
    level = [row["id"] for row in crews]
    while level:
        found = await tx.subcrews(level, unfinished_only=True)
        level = [row["id"] for row in found]
        inside += found
    cause = public_id(CREW.name, crews[0]["id"])
    await _cancel_shares(tx, [row["id"] for row in (*crews, *inside)], reason, cause, actor)
    for row in reversed(inside):
        await _moved(tx, row, "cancel", reason=reason, actor=actor, cause=cause)
    return inside


async def _cancel_shares(
    tx: Transaction, crews: Sequence[int], reason: str | None, cause: str, actor: str | None
) -> None:
    """Cancel the unfinished shares.

    A claim takes no crew lock, so shares that were claimed meanwhile are read again.
    """
    for _ in range(TRIES):
        jobs = await tx.shares(crews, unfinished_only=True)
        if not jobs:
            return
        facts: dict[str, Any] = {"reason": reason or "its crew was cancelled", "cause": cause, "actor": actor}
        await agent_moves.write(tx, [insist(decide(JOB, job, "cancel", **facts)) for job in jobs])
    raise LeaseLost(lifecycle=CREW.name, id=cause, trigger="cancel")


async def _moved(tx: Transaction, row: Row, trigger: str, **how: Any) -> None:
    """Move a crew under its lock. Raise `LeaseLost` if an edit in the database moved it nevertheless."""
    facts = {"actor": ACTOR, **{name: value for name, value in how.items() if value is not None}}
    if await tx.apply([insist(decide(CREW, row, trigger, **facts))]):
        raise LeaseLost(lifecycle=CREW.name, id=public_id(CREW.name, row["id"]), trigger=trigger)


# --- workers


async def allocate(tx: Transaction, tenant_id: int) -> int:
    """Assign free workers to waiting shares and crews, and return how many received them."""
    return sum([await _let_go(tx, tenant_id, *free) for free in _free(await tx.quotas(tenant_id))])


def _free(found: Sequence[Quota]) -> list[tuple[int, int, int]]:
    """Return the depths that have both free workers and something that waits for them.

    Each has its depth, its quota, and its number of free workers.
    """
    in_line = {quota.depth for quota in found if quota.in_line}
    return [(depth, most, most - used) for depth, most, used in counted(found) if most > used and depth in in_line]


async def quotas(where: Where, tenant_id: int) -> list[tuple[int, int, int]]:
    """Return depth, quota, and workers in use, for each depth."""
    return counted(await where.quotas(tenant_id))


def counted(found: Sequence[Quota]) -> list[tuple[int, int, int]]:
    """Return depth, quota, and workers in use, for each depth, from the rows of the store."""
    used = {quota.depth: quota.used for quota in found}
    limits = crew_plan.limits({quota.depth: quota.most for quota in found})
    return [(depth, most, used.get(depth, 0)) for depth, most in limits.items()]


async def _let_go(tx: Transaction, tenant_id: int, depth: int, most: int, free: int) -> int:
    going = crew_plan.let_go(free, *await tx.in_line(tenant_id, depth, most, free))
    if going.shares:
        await tx.go_on(going.shares)
    if going.crews:
        for row in sorted(await tx.rows(CREW, going.crews), key=lambda row: going.crews.index(row["id"])):
            await _moved(tx, row, "allocate_resources", free_workers=free)
            await tx.enqueue(shares_of(row))
            free -= row["worker_count"]
    return len(going.shares) + len(going.crews)


async def anyone_to_let_go(where: Where, tenant_id: int) -> bool:
    """Return whether a crew or share waits although workers are free. Usually none does, and nothing is locked."""
    for depth, most, free in _free(await where.quotas(tenant_id)):
        if any(crew_plan.let_go(free, *await where.in_line(tenant_id, depth, most, free))):
            return True
    return False


def shares_of(row: Row) -> list[NewJob]:
    """Return the jobs of a crew that has received its workers."""
    work, shares = json.loads(row["work"]), row["worker_count"]
    id = public_id(CREW.name, row["id"])
    keys = work["limit_keys"] or [None] * shares
    return [
        NewJob(
            work["kind"],
            share_payload(work["arguments"], number, shares, row["task_description"]),
            work["queue"],
            row["tenant_id"],
            work["priority"],
            max_attempts=work["max_attempts"],
            on_exhausted=work["on_exhausted"],
            limit_key=keys[number],
            held_by=None if keys[number] is None else HELD_BY_LIMIT,
            actor=ACTOR,
            cause=id,
            correlation_id=row["correlation_id"] or id,
            trace_id=row["trace_id"],
            crew_id=row["id"],
            tree_id=row["tree_id"] or row["id"],
        )
        for number in range(shares)
    ]


def share_payload(arguments: dict[str, Any], share: int, shares: int, task: str) -> str:
    """Return the arguments of a share as JSON."""
    given = {**arguments, "share": share, "shares": shares, "task": task}
    return json.dumps(given, separators=(",", ":"), allow_nan=False)

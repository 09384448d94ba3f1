"""Waits of jobs on PostgreSQL: locks first, then the change, then a check of what already exists. Each is a statement
of its own, so that a session that waited for a lock sees what its holder has committed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keptwork.store.contract.records import Job
from keptwork.store.contract.waits import EVENT, Wakes, signal_lock
from keptwork.store.contract.waits_approvals import Approval, NewApproval, asked
from keptwork.store.contract.waits_signals import NewSignal, Sent
from keptwork.store.postgres.side_writes_blobs import Fetch


async def prepare(fetch: Fetch, wakes: Wakes, moving: Iterable[int]) -> None:
    """Take the locks. With parents among them, everything is locked in one order, so that no two callers deadlock."""
    if wakes.listeners:
        await fetch("lock_signals", names=wakes.signals)
    if wakes.ended:
        await fetch("lock_jobs", ids=sorted({*moving, *(id for id, _ in wakes.parents)}))


async def wake(fetch: Fetch, wakes: Wakes) -> int:
    """Record the new waits, then make the jobs due whose wait has ended. Return the number of these jobs."""
    if wakes.several:
        rows = _columns(wakes.several, "job_id", "epoch", "number", "name", "until")
        await fetch("drop_waits", job_id=rows["job_id"], epoch=rows["epoch"])
        await fetch("note_waits", **rows)
    woken = 0
    if wakes.parents:
        woken += len(await fetch("wake_parents", **_columns(wakes.parents, "id", "seen")))
    if wakes.listeners:
        woken += len(await fetch("wake_listeners", **_columns(wakes.listeners, "id", "name", "seen")))
    if wakes.askers:
        woken += len(await fetch("wake_askers", **_columns(wakes.askers, "id", "seen")))
    return woken


async def send_signal(fetch: Fetch, signal: NewSignal) -> Sent:
    """Send a signal in a transaction. Its position is assigned under the lock, so positions increase in commit
    order."""
    await fetch("lock_signals", names=[signal_lock(signal.tenant_id, signal.name)])
    made = await fetch("send_signal", **signal._asdict())
    if not made:
        key = {"tenant_id": signal.tenant_id, "key": signal.key}
        return Sent((await fetch("signal_by_key", **key))[0][0], False, 0)
    wanted = {"tenant_id": signal.tenant_id, "waits_for": f"{EVENT}{signal.name}", "job_id": signal.job_id}
    return Sent(made[0][0], True, len(await fetch("wake_for_signal", **wanted)))


async def open_approval(fetch: Fetch, job: Job, question: NewApproval, id: int) -> Approval | None:
    """In a transaction, open an approval request. If the same one exists, return it, whichever claim made it."""
    values = asked(job, question, id)
    if not await fetch("still_held", **values):
        return None
    await fetch("withdraw_others", **values)
    await fetch("open_approval", **values)
    return Approval(*(await fetch("approval_asked", **values))[0])


async def decide_approval(
    fetch: Fetch, tenant_id: int, id: int, decision: str, by: str | None, comment: str | None
) -> tuple[Approval | None, bool]:
    """In a transaction, decide an approval. The job is locked before the approval, as in every operation that locks
    both."""
    which = {"tenant_id": tenant_id, "id": id}
    await fetch("lock_asker", **which)
    decided = await fetch("decide_approval", **which, decision=decision, decided_by=by, comment=comment)
    rows = await fetch("approval", **which)
    if not rows:
        return None, False
    approval = Approval(*rows[0])
    if not decided:
        return approval, False
    return approval, bool(await fetch("wake_asker", job_id=approval.job_id, waits_for=approval.waits_for))


def _columns(rows: list[Any], *names: str) -> dict[str, list[Any]]:
    """Return columns of the rows, sorted by job ID, which is the lock order of all callers."""
    return {name: list(column) for name, column in zip(names, zip(*sorted(rows), strict=True), strict=True)}

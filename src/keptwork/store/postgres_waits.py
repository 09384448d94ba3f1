"""What jobs wait for, on PostgreSQL: locks first, then the change, then a look at what is there. Each of these is a
statement of its own, so that whoever waited for a lock sees what its holder has committed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keptwork.store.approvals import Approval, NewApproval, asked
from keptwork.store.postgres_blobs import Fetch
from keptwork.store.records import Job
from keptwork.store.signals import NewSignal, Sent
from keptwork.store.wakes import EVENT, Wakes, signal_lock


async def prepare(fetch: Fetch, wakes: Wakes, moving: Iterable[int]) -> None:
    """Takes the locks. With parents among them, everything is locked in one order, so that nobody waits in a circle."""
    if wakes.listeners:
        await fetch("lock_signals", names=wakes.signals)
    if wakes.ended:
        await fetch("lock_jobs", ids=sorted({*moving, *(id for id, _ in wakes.parents)}))


async def wake(fetch: Fetch, wakes: Wakes) -> int:
    """Makes those due whose wait is over; returns how many. What jobs wait for is noted first."""
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
    """In a transaction: the place in the sequence is taken under the lock, so places grow in the order of commits."""
    await fetch("lock_signals", names=[signal_lock(signal.tenant_id, signal.name)])
    made = await fetch("send_signal", **signal._asdict())
    if not made:
        key = {"tenant_id": signal.tenant_id, "key": signal.key}
        return Sent((await fetch("signal_by_key", **key))[0][0], False, 0)
    wanted = {"tenant_id": signal.tenant_id, "waits_for": f"{EVENT}{signal.name}", "job_id": signal.job_id}
    return Sent(made[0][0], True, len(await fetch("wake_for_signal", **wanted)))


async def open_approval(fetch: Fetch, job: Job, question: NewApproval, id: int) -> Approval | None:
    """In a transaction. A question that is there already stands, whoever asked it."""
    values = asked(job, question, id)
    if not await fetch("still_held", **values):
        return None
    await fetch("withdraw_others", **values)
    await fetch("open_approval", **values)
    return Approval(*(await fetch("approval_asked", **values))[0])


async def decide_approval(
    fetch: Fetch, tenant_id: int, id: int, decision: str, by: str | None, comment: str | None
) -> tuple[Approval | None, bool]:
    """In a transaction: the job before the question, as everyone who takes both does."""
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
    """Sorted by job, as everyone names them."""
    return {name: list(column) for name, column in zip(names, zip(*sorted(rows), strict=True), strict=True)}

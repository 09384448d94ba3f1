"""Waits of jobs on SQLite. There is one writer, so nothing that is read changes before the commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from keptwork.store.contract.records import Job
from keptwork.store.contract.waits import EVENT, Wakes
from keptwork.store.contract.waits_approvals import Approval, NewApproval, asked
from keptwork.store.contract.waits_signals import NewSignal, Sent

Run = Callable[..., list[tuple[Any, ...]]]


def wake(run: Run, wakes: Wakes) -> int:
    """Record the new waits, then make the jobs due whose wait has ended. Return the number of these jobs."""
    if wakes.several:
        given = json.dumps(wakes.several)
        run("drop_waits", given=given)
        run("note_waits", given=given)
    looks = {"wake_parents": wakes.parents, "wake_listeners": wakes.listeners, "wake_askers": wakes.askers}
    return sum(len(run(look, given=json.dumps(given))) for look, given in looks.items() if given)


def send_signal(run: Run, signal: NewSignal) -> Sent:
    made = run("send_signal", **signal._asdict())
    if not made:
        return Sent(run("signal_by_key", tenant_id=signal.tenant_id, key=signal.key)[0][0], False, 0)
    wanted = {"tenant_id": signal.tenant_id, "waits_for": f"{EVENT}{signal.name}", "job_id": signal.job_id}
    return Sent(made[0][0], True, len(run("wake_for_signal", **wanted)))


def open_approval(run: Run, job: Job, question: NewApproval, id: int) -> Approval | None:
    """Open an approval request, or return the same earlier one, whichever claim made it."""
    values = asked(job, question, id)
    if not run("still_held", **values):
        return None
    run("withdraw_others", **values)
    run("open_approval", **values)
    return Approval(*run("approval_asked", **values)[0])


def decide_approval(
    run: Run, tenant_id: int, id: int, decision: str, by: str | None, comment: str | None
) -> tuple[Approval | None, bool]:
    which = {"tenant_id": tenant_id, "id": id}
    decided = run("decide_approval", **which, decision=decision, decided_by=by, comment=comment)
    rows = run("approval", **which)
    if not rows:
        return None, False
    approval = Approval(*rows[0])
    if not decided:
        return approval, False
    return approval, bool(run("wake_asker", job_id=approval.job_id, waits_for=approval.waits_for))

"""Decide approval requests by flow. A flow with several approval steps needs the name of one."""

from __future__ import annotations

from keptwork.errors import BadInput, NothingAsked
from keptwork.flows import commands as flows
from keptwork.flows.approvals import Insist, anybody
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import shape
from keptwork.flows.definition import Step
from keptwork.flows.steps.approval import APPROVED as STEP_APPROVED
from keptwork.flows.transaction import Row
from keptwork.store import Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.store import Reader
from keptwork.store.contract.waits_approvals import Approval


@acknowledged
async def answer(
    store: Store,
    ref: FlowRef,
    decision: str,
    *,
    gate: str | None = None,
    by: str,
    comment: str | None = None,
    insist: Insist = anybody,
) -> Approval:
    """Approve or reject the request of a flow.

    A repeated decision returns the first. Raise `NothingAsked` if no request is open.
    """
    step = await _gate(store, ref, gate)
    asked = await store.gate(step["tenant_id"], step["id"])
    if asked is None:
        raise await _nothing_asked(store, ref, step, decision)
    insist(asked.scope)
    return await flows.decide_gate(store, step, decision, by, comment)


async def insist_on_gate(store: Reader, step: Row, insist: Insist) -> None:
    """Raise if the caller skips an approval step whose request they must not decide."""
    (flow,) = await store.rows(flows.kind_of(step).flow, [step["flow_id"]], ("tenant_id", "template_id"))
    named = (await shape(store, flow["tenant_id"], flow["template_id"])).steps.get(step["name"])
    if named is not None:
        insist_on_step(named, insist)


def insist_on_step(step: Step, insist: Insist) -> None:
    """Raise if this is an approval step and the caller must not decide its request."""
    if step.kind == "approval":
        insist(None if step.approval is None else step.approval.by)


async def _nothing_asked(store: Store, ref: FlowRef, step: Row, decision: str) -> NothingAsked:
    flow = await flows.row_of(store, ref, ("state",))
    return NothingAsked(
        id=ref.public_id,
        state=flow["state"],
        step=step["name"],
        from_state=step["state"],
        trigger="approve" if decision == STEP_APPROVED else "reject",
        allowed=ref.kind.step.allowed_from(step["state"]),
    )


async def _gate(store: Store, ref: FlowRef, named: str | None) -> Row:
    """Return the approval step.

    A flow with several approval steps needs its name, so that a repeated decision cannot decide the next request.
    """
    flow = await flows.row_of(store, ref, ("tenant_id", "template_id"))
    steps = (await shape(store, flow["tenant_id"], flow["template_id"])).steps
    names = [name for name, step in steps.items() if step.kind == "approval"]
    if not names:
        raise BadInput(what=f"{ref.public_id} asks nobody: it has no step of kind approval")
    if named is None and len(names) > 1:
        raise BadInput(what=f"{ref.public_id} has several gates; say which with --gate: {', '.join(names)}")
    if named is not None and named not in names:
        raise BadInput(what=f"{ref.public_id} has no gate {named!r}; it has: {', '.join(names)}")
    (row,) = await store.steps(ref.id, names=[named or names[0]])
    return row

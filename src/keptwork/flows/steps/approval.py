"""Approval steps: requests that are bound to exactly the steps that an approval would start."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from keptwork.core.durations import span_us
from keptwork.core.lifecycles import Verb
from keptwork.flows import expression
from keptwork.flows.definition import Approval as Asked
from keptwork.flows.definition import Step
from keptwork.flows.expression import Look
from keptwork.flows.plan import Phase, filled_step
from keptwork.flows.transaction import Row, Scene
from keptwork.store.contract.flows_steps import NewGate
from keptwork.store.contract.waits_approvals import Approval

APPROVED, REJECTED, EXPIRED, WITHDRAWN = "approved", "rejected", "expired", "withdrawn"

MOST_SHOWN = 20
LONGEST_QUESTION = 10_000


async def open_gate(scene: Scene, row: Row) -> None:
    """Open the approval request of a step.

    In a run, the run also waits. Raise `Wrong`, before anything changes, if the question uses an absent value.
    """
    step = scene.shape.steps[row["name"]]
    question(scene, step, await scene.values(step.references, cut=step.takes_cut))
    if scene.kind.name == "run":
        scene.move(row, Verb.GATE)
        scene.move_flow(Verb.GATE)
    else:
        scene.move(row, Verb.START)
    await ask(scene, row)


async def ask(scene: Scene, row: Row) -> Approval:
    """Store the approval request of a waiting step. An identical open request stays open."""
    step = scene.shape.steps[row["name"]]
    asked = step.approval or Asked.model_validate({})
    action, look = await released(scene, row["name"]), await scene.values(step.references, cut=step.takes_cut)
    return await scene.tx.open_gate(
        NewGate(
            row["id"],
            scene.tenant_id,
            row["name"],
            question(scene, step, expression.marked(look)),
            digest_of(action),
            json.dumps(action, ensure_ascii=False),
            asked.by,
            None if asked.expires is None else span_us(asked.expires),
        )
    )


def question(scene: Scene, step: Step, look: Look) -> str:
    """Return the text of the question."""
    asked = None if step.approval is None else step.approval.question
    text = asked or step.description or f"{scene.flow['name']}: go on after {step.id}?"
    return expression.as_text(expression.filled(text, look))[:LONGEST_QUESTION]


async def released(scene: Scene, name: str) -> list[dict[str, Any]]:
    """Return what an approval would start: the next steps, with the values that are known now.

    Values that are not known yet are marked.
    """
    after = [scene.shape.steps[later] for later in scene.shape.after[name][:MOST_SHOWN]]
    return [{"step": step.id, **await _action(scene, step)} for step in after]


async def _action(scene: Scene, step: Step) -> dict[str, Any]:
    said = step.model_dump(by_alias=True, exclude_defaults=True, exclude={"id", "depends_on", "description"})
    look = expression.marked(await scene.values(step.references, cut=step.takes_cut))
    found: dict[str, Any] = json.loads(json.dumps(filled_step(said, look), default=float))
    return found


def digest_of(action: object) -> str:
    """Return the digest of what an approval would start. The decision is valid for nothing else."""
    return sha256(json.dumps(action, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


async def decide_gate(
    scene: Scene, step: Row, decision: str, by: str | None, comment: str | None, asked: int | None
) -> Approval | None:
    """Store a decision and advance the flow.

    Return the request as it is then, or None if there is none. If several reviewers decide concurrently, the first
    decision wins. If what an approval would start has changed, a new request replaces the old one and is returned. The
    request of a step that was moved manually is withdrawn.
    """
    from keptwork.flows import engine as advance

    gate = await scene.tx.gate(scene.tenant_id, step["id"])
    if gate is None or gate.decision is not None or asked not in (None, gate.id):
        return gate
    await scene.look_at([step["name"]])
    row = scene.steps[step["name"]]
    if scene.phase(row) is not Phase.ACTIVE:
        return await scene.tx.close_gate(scene.tenant_id, row["id"], WITHDRAWN)
    if decision == APPROVED and digest_of(await released(scene, row["name"])) != gate.digest:
        return await ask(scene, row)
    closed = await scene.tx.close_gate(scene.tenant_id, row["id"], decision, by, comment)
    if closed is not None:
        await _follow(scene, row, closed)
        await advance.go_on(scene, [row])
    return closed or gate


async def _follow(scene: Scene, row: Row, closed: Approval) -> None:
    run = scene.kind.name == "run"
    if closed.decision == APPROVED:
        output = json.dumps({"approved_by": closed.decided_by, "comment": closed.comment})
        scene.move(row, Verb.APPROVE if run else Verb.SUCCEED, closed.comment, output=output)
        if run and scene.shape.after[row["name"]]:
            scene.move_flow(Verb.APPROVE)
        return
    late = closed.decision == EXPIRED
    why = "nobody answered in time" if late else f"rejected by {closed.decided_by or 'somebody'}"
    error = f"{why}: {closed.comment}" if closed.comment else why
    verb = Verb.FAIL if not run else Verb.EXPIRE if late else Verb.REJECT
    scene.move(row, verb, error, error=error)

"""Start, cancel, retry, hold, and repair flows, and decide approvals, for users and code."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from keptwork.core import ids, secrets
from keptwork.core.lifecycles import Lifecycle, Verb, decide
from keptwork.errors import (
    AlreadyDecided,
    ApprovalChanged,
    BadInput,
    InvalidTransition,
    NotFound,
    StoreError,
)
from keptwork.flows import commands_holds, commands_list_mends, create, validation
from keptwork.flows import engine as advance
from keptwork.flows.compiled import KINDS, Kind, Library, definition_text
from keptwork.flows.definition import Flow
from keptwork.flows.plan import Phase, Shape
from keptwork.flows.steps import approval as gates
from keptwork.flows.transaction import Actor, Row, Scene
from keptwork.flows.validation import bound
from keptwork.jobs.complete import again_if_moved
from keptwork.observability import spans
from keptwork.store import Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.flows_templates import NewTemplate, Template
from keptwork.store.contract.records import DEFAULT_TENANT
from keptwork.store.contract.store import Reader, Transaction
from keptwork.store.contract.waits_approvals import Approval
from keptwork.webhooks import outbox

T = TypeVar("T")

logger = logging.getLogger("keptwork")


class FlowRef(NamedTuple):
    """A flow, identified by its kind and its key."""

    kind: Kind
    id: int

    @property
    def public_id(self) -> str:
        return ids.public(self.kind.flow.prefix, self.id)


# --- starting


async def start(
    store: Store,
    flow: Flow,
    given: Mapping[str, Any] | None = None,
    *,
    tenant_id: int = DEFAULT_TENANT,
    key: str | None = None,
    hold: bool = False,
    webhook: Mapping[str, Any] | None = None,
    queue: str | None = None,
    library: Library | None = None,
    trace_id: str | None = None,
    actor: Actor = Actor(),  # noqa: B008 - never changed, so safe to share
) -> FlowRef:
    """Start a flow with these inputs.

    A repeated key returns the existing flow, and raises `FlowKeyReused` if that differs. With `hold`, no step starts
    until the hold is lifted. With `webhook` ({"url": …}), the end of the flow is delivered there. Steps that name no
    queue use `queue`. An invalid flow or invalid inputs raise an error, and nothing is stored.
    """
    for one in (flow, *(library or {}).values()):
        validation.insist(one)
    inputs, hook = _inputs(flow, given), None if webhook is None else outbox.checked(webhook)
    shape = None if library else Shape.of(flow)  # `keep` renames the nested flows in the steps

    async def work(tx: Transaction) -> FlowRef:
        template = await keep(tx, flow, tenant_id, library or {})
        how = {"key": key, "hold": hold, "webhook": hook, "queue": queue, "trace_id": trace, "shape": shape}
        wanted = create.Wanted(template, given or {}, inputs, hook, flow, library or {})
        return await _launch(tx, wanted, actor, **how)

    with spans.producing("start", flow.name, trace_id):
        trace = spans.carried(trace_id)
        return await again_if_moved(store, work, 2 + len(flow.steps))


async def start_template(
    store: Store,
    template: Template,
    given: Mapping[str, Any] | None = None,
    *,
    newest: bool = False,
    key: str | None = None,
    hold: bool = False,
    webhook: Mapping[str, Any] | None = None,
    queue: str | None = None,
    trace_id: str | None = None,
    actor: Actor = Actor(),  # noqa: B008 - never changed, so safe to share
) -> FlowRef:
    """Start a flow of a stored definition as `start` does.

    With `newest`, the caller named the template and not a version: a repeated key then also returns a flow of an
    earlier version.
    """
    definition = Flow.model_validate(json.loads(template.definition))
    inputs = _inputs(definition, given)
    hook = None if webhook is None else outbox.checked(webhook)

    async def work(tx: Transaction) -> FlowRef:
        how = {"key": key, "hold": hold, "webhook": hook, "queue": queue, "trace_id": trace}
        wanted = create.Wanted(template, given or {}, inputs, hook, None if newest else definition, {})
        return await _launch(tx, wanted, actor, **how)

    with spans.producing("start", template.name, trace_id):
        trace = spans.carried(trace_id)
        return await again_if_moved(store, work)


def _inputs(flow: Flow, given: Mapping[str, Any] | None) -> Row:
    inputs = bound(flow, given or {})
    secrets.insist(f"what flow {flow.name} is given", json.dumps(inputs))
    return inputs


async def _launch(tx: Transaction, wanted: create.Wanted, actor: Actor, **how: Any) -> FlowRef:
    template = wanted.template
    kind, key = KINDS[template.kind], how["key"]
    if key is not None:
        await tx.lock_trees([_lock_of(template.tenant_id, key)])
        earlier = await tx.flow_by_key(kind.flow, template.tenant_id, key)
        if earlier is not None:
            await create.insist(tx, kind, earlier, wanted)
            return FlowRef(kind, earlier["id"])
    return FlowRef(kind, await create.launched(tx, template, wanted.inputs, actor=actor, **how))


def _lock_of(tenant_id: int, key: str) -> int:
    """Return the lock that serializes starts under the same key.

    Flow keys are far larger, so it collides with none.
    """
    return crc32(f"{tenant_id} {key}".encode())


async def keep(tx: Transaction, flow: Flow, tenant_id: int, library: Library) -> Template:
    """Store a definition and those of its nested flows, and name those by template ID."""
    named = {}
    for step in flow.steps:
        if step.flow is not None and step.flow in library:
            named[step.id] = (await keep(tx, library[step.flow], tenant_id, library)).public_id
    steps = [step.model_copy(update={"flow": named[step.id]}) if step.id in named else step for step in flow.steps]
    whole = flow.model_copy(update={"steps": steps}) if named else flow
    definition = definition_text(whole)
    secrets.insist(f"flow {flow.name}", definition)
    return await tx.put_template(NewTemplate(tenant_id, flow.kind, flow.name, definition))


# --- finding


async def found(store: Reader, public_id: str, tenant_id: int | None) -> FlowRef:
    """Return the flow with this ID, or raise `NotFound`."""
    prefix, key = ids.key_of(public_id.strip()) or ("", 0)
    for kind in KINDS.values():
        if kind.flow.prefix == prefix and await store.get(kind.flow, key, tenant_id) is not None:
            return FlowRef(kind, key)
    raise _unknown(public_id)


async def row_of(store: Reader, ref: FlowRef, columns: Sequence[str] = ("*",)) -> Row:
    """Return the current row of a flow, or raise `NotFound` if retention has deleted it."""
    rows = await store.rows(ref.kind.flow, [ref.id], columns)
    if not rows:
        raise _unknown(ref.public_id)
    return rows[0]


def _unknown(public_id: str) -> NotFound:
    return NotFound(what="flow", id=repr(public_id), listing="keptwork workstreams list")


async def found_step(store: Reader, public_id: str, tenant_id: int | None) -> Row:
    """Return the step with this ID, or raise `NotFound`."""
    prefix, key = ids.key_of(public_id.strip()) or ("", 0)
    rows = await store.steps_by_key([key]) if prefix == KINDS["run"].step.prefix else []
    if not rows or tenant_id not in (None, rows[0]["tenant_id"]):
        raise NotFound(what="step", id=repr(public_id), listing="keptwork steps list FLOW")
    return rows[0]


# --- changing


async def change(store: Store, ref: FlowRef, actor: Actor, work: Callable[[Scene], Awaitable[T]]) -> T:
    """Run `work` on a flow under its lock, and write what it decided."""

    async def locked(tx: Transaction) -> T:
        seen = await row_of(tx, ref, ("id", "tree_id"))
        await tx.lock_trees([seen["tree_id"] or ref.id])
        flow = await row_of(tx, ref)
        scene = await Scene.of(tx, ref.kind, flow, actor)
        result = await work(scene)
        await scene.write()
        return result

    return await again_if_moved(store, locked)


async def cancel(store: Store, ref: FlowRef, actor: Actor) -> None:
    """Cancel a run or abandon a workstream, with everything inside it."""

    async def work(scene: Scene) -> None:
        _insist(scene, scene.kind.flow, scene.flow, Verb.CANCEL)
        await advance.give_up(scene, actor.reason or "somebody asked for it")
        await advance.conclude(scene)

    await change(store, ref, actor, work)


async def retry(store: Store, ref: FlowRef, actor: Actor) -> None:
    """Retry the unsuccessful steps of a failed workstream, even if it has no retries left."""

    async def work(scene: Scene) -> None:
        await grant_retry(scene)
        _insist(scene, scene.kind.flow, scene.flow, Verb.RETRY, Verb.RESUME)
        await advance.next_round(scene, actor.reason or "an operator asked for it", await scene.tx.now())

    await change(store, ref, actor, work)


async def grant_retry(scene: Scene) -> None:
    """Grant one more retry to a workstream that has used all its retries."""
    flow = scene.flow
    if scene.kind.name == "workstream" and flow["retry_count"] >= flow["max_retries"]:
        flow["max_retries"] = flow["retry_count"] + 1
        await scene.tx.amend(scene.kind.flow, [scene.id], scene.tenant_id, max_retries=flow["max_retries"])


async def resume(store: Store, ref: FlowRef, actor: Actor) -> None:
    """Check the whole flow again.

    Start every step that could run and has no job. Finish the flow if all its steps have finished.
    """

    async def work(scene: Scene) -> None:
        _insist_unfinished(scene, "resume")
        await advance.restart(scene)

    await change(store, ref, actor, work)


async def hold(store: Store, ref: FlowRef, actor: Actor) -> None:
    """Hold a flow and the flows inside it: no further steps start, and running steps continue."""

    async def work(scene: Scene) -> None:
        _insist_unfinished(scene, "hold")
        await commands_holds.hold_in(scene)

    await change(store, ref, actor, work)


async def let_go(store: Store, ref: FlowRef, actor: Actor) -> None:
    """Lift the hold of a flow."""

    async def work(scene: Scene) -> None:
        _insist_unfinished(scene, "release")
        await commands_holds.let_go_in(scene)

    await change(store, ref, actor, work)


async def skip(store: Store, step: Row, actor: Actor) -> None:
    """Skip a step, so that the steps that depend on it can start."""
    await _mend(store, step, actor, Verb.SKIP)


async def reset(store: Store, step: Row, actor: Actor) -> None:
    """Reset a failed step so that it runs again, with all its retries."""
    await _mend(store, step, actor, Verb.RESET)


async def _mend(store: Store, step: Row, actor: Actor, verb: Verb) -> None:
    kind = kind_of(step)

    async def work(scene: Scene) -> None:
        await scene.look_at_all()
        row = scene.steps[step["name"]]
        _insist(scene, kind.step, row, verb)
        for job in await scene.tx.unfinished_jobs(scene.tree):
            if job.step_id == row["id"]:
                scene.cancel_job(job, f"its step was asked to {verb}")
        scene.move(row, verb)
        await commands_list_mends.follow(scene, row, verb)
        failed = [one for one in scene.steps.values() if scene.phase(one) is Phase.FAILED]
        if not failed and scene.own_phase is Phase.FAILED:
            await grant_retry(scene)
            await advance.next_round(scene, actor.reason, await scene.tx.now())
        else:
            await scene.write()
            await advance.restart(scene)

    await change(store, FlowRef(kind, step["flow_id"]), actor, work)


def _insist_unfinished(scene: Scene, wish: str) -> None:
    """Raise `InvalidTransition` if the flow has finished.

    `wish` names an action that is not a move of the lifecycle.
    """
    if scene.over:
        raise InvalidTransition(
            lifecycle=scene.kind.name,
            id=scene.public_id,
            from_state=scene.flow["state"],
            trigger=wish,
            allowed=scene.kind.flow.allowed_from(scene.flow["state"]),
        )


def _insist(scene: Scene, lifecycle: Lifecycle, row: Row, *verbs: Verb) -> None:
    """Raise `InvalidTransition` with the allowed moves unless one of these moves is possible."""
    refusals = [decide(lifecycle, row, verb, dependencies_met=True) for verb in verbs]
    refused = [refusal for refusal in refusals if isinstance(refusal, InvalidTransition)]
    if len(refused) == len(refusals):
        first = refused[0]
        raise InvalidTransition(
            lifecycle=first.lifecycle,
            id=ids.public(lifecycle.prefix, row["id"]),
            from_state=first.from_state,
            trigger=_own_name(lifecycle, verbs[0]),
            allowed=first.allowed,
            because=first.because,
        )


def _own_name(lifecycle: Lifecycle, verb: Verb) -> str:
    """Return the name that a lifecycle gives to the moves of a verb."""
    return next((move.trigger for move in lifecycle.moves if move.verb is verb), verb)


# --- approvals


@acknowledged
async def decide_gate(
    store: Store,
    step: Row,
    decision: str,
    by: str | None = None,
    comment: str | None = None,
    asked: int | None = None,
) -> Approval:
    """Decide the approval request of a step.

    The decision is `approved`, `rejected`, or, after the deadline, `expired`. A repeated decision returns the first. If
    the steps that an approval would start have changed since the request, a new request replaces it, and this raises
    `ApprovalChanged`.
    """
    before = await store.gate(step["tenant_id"], step["id"])
    ref, actor = FlowRef(kind_of(step), step["flow_id"]), Actor(by, comment)
    gate = await change(store, ref, actor, lambda scene: gates.decide_gate(scene, step, decision, by, comment, asked))
    if gate is None:
        raise BadInput(what=f"the step {step['name']} asks nothing now; see: keptwork approvals list")
    if gate.decision is None and before is not None and gate.id != (asked or before.id):
        raise ApprovalChanged(id=before._replace(id=asked or before.id).public_id, new=gate.public_id)
    if gate.decision != decision or asked not in (None, gate.id):
        raise AlreadyDecided(id=gate.public_id, **_told(gate))
    return gate


def _told(gate: Approval) -> dict[str, str]:
    by = f" by {gate.decided_by}" if gate.decided_by else ""
    return {"decision": gate.decision or gates.EXPIRED, "by": by}


def kind_of(step: Row) -> Kind:
    """Return the kind of flow that a step belongs to."""
    return KINDS["run" if step["lifecycle"] == KINDS["run"].step.name else "workstream"]


async def step_of(store: Reader, approval: Approval) -> Row:
    """Return the step of an approval request."""
    rows = await store.steps_by_key([approval.step_id or 0])
    if not rows:
        raise NotFound(what="step", id=approval.public_id, listing="keptwork approvals list")
    return rows[0]


# --- time


async def wake(store: Store, limit: int = 100) -> int:
    """Move due flows, expire overdue approval requests, and return how many were handled.

    A flow that has moved meanwhile does not change.
    """
    moved = 0
    actor = Actor("clock")
    for kind in KINDS.values():
        for flow in await store.flows_to_wake(kind.flow, limit):
            moved += await _wake_one(store, FlowRef(kind, flow["id"]), actor)
    for approval in await store.expired_gates(limit):
        moved += await _expire_one(store, approval)
    return moved


async def _expire_one(store: Store, approval: Approval) -> bool:
    """Expire an overdue approval request, and return whether that worked."""
    try:
        await decide_gate(store, await step_of(store, approval), gates.EXPIRED, "clock", asked=approval.id)
    except AlreadyDecided:
        return True  # a reviewer decided at the last moment
    except StoreError:
        raise
    except Exception as error:
        _complain(approval.public_id, str(error))
        return False
    return True


async def _wake_one(store: Store, ref: FlowRef, actor: Actor) -> bool:
    """Move one flow, and return whether that worked. A damaged flow must not block the others."""
    try:
        await change(store, ref, actor, _woken)
    except StoreError:
        raise
    except Exception as error:
        _complain(ref.public_id, str(error))
        return False
    return True


@lru_cache(maxsize=1_000)
def _complain(id: str, error: str) -> None:
    """Log a warning once per process.

    The wake time of a damaged flow stays due, so every call of `wake` finds it again.
    """
    logger.warning("%s cannot be moved by time: %s; see: keptwork doctor", id, error)


async def _woken(scene: Scene) -> None:
    now = await scene.tx.now()
    if scene.over or scene.flow["wake_at"] is None or scene.flow["wake_at"] > now:
        return
    if scene.kind.flow.leading_out_of(scene.flow["state"], Verb.RESUME):
        await advance.next_round(scene)
    elif scene.own_phase is Phase.FAILED:
        await advance.give_up(scene, f"it had failed, and nobody did anything for {scene.shape.flow.abandon_after}")
        await advance.conclude(scene)
    else:
        await advance.time_out(scene)


async def began(store: Store, flows: list[tuple[str, int]]) -> None:
    """Start the flows whose first step has started."""
    for public_id, tenant_id in flows:
        ref = await found(store, public_id, tenant_id)

        async def work(scene: Scene) -> None:
            advance.begin_flow(scene)

        if (await row_of(store, ref, ("state",)))["state"] == ref.kind.flow.initial.name:
            await change(store, ref, Actor("flow"), work)

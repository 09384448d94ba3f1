"""Explain why a flow or a step is not moving, down to the deepest cause.

A flow waits for its steps. A step waits for its job, an approval, its nested flow or crew, or the steps before it. A
job has its own causes. The doctor finds flows that nothing will ever move.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, JOB, Verb
from keptwork.diagnostics import why_crews, why_jobs
from keptwork.diagnostics.doctor.finding import Finding
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.diagnostics.doctor.runner import looked
from keptwork.diagnostics.why_jobs import COMES, EXPIRES, Reason
from keptwork.flows import commands as flows
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import Kind
from keptwork.flows.plan import Phase
from keptwork.flows.queries import find_step
from keptwork.store import Store

Row = dict[str, Any]

MOST_STEPS = 5
DEEPEST = 20
NO_DAMAGE = ("blocked", "stuck")
"""Findings of the doctor that this module reports as other causes."""


class FlowCause(StrEnum):
    """A cause that can keep a flow or a step from moving, in addition to those of jobs."""

    ENDED = "ended"
    HELD = "held_flow"
    RETRY = "flow_retry"
    FAILED = "flow_failed"
    ASKED = "approval"
    DEPENDENCY = "dependency"
    ROOM = "room"
    SUBFLOW = "subflow"
    STEP = "step"
    DAMAGE = "damage"


async def why(store: Store, tenant_id: int, id: str) -> tuple[Row, list[Reason]]:
    """Return a flow and the causes that keep it. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    ref = await flows.found(store, id, tenant_id)
    row = await flows.row_of(store, ref)
    return row, await _of_flow(store, await Chart.of(store, ref.kind, row), 0)


async def why_step(store: Store, tenant_id: int, id: str) -> tuple[Row, list[Reason]]:
    """Return a step, by its ID or by its flow and name, and the causes that keep it.

    Raise `NotFound` for an unknown ID and for another tenant's ID.
    """
    step = await find_step(store, tenant_id, id)
    kind = flows.kind_of(step)
    flow = await flows.row_of(store, FlowRef(kind, step["flow_id"]))
    return step, await _of_step(store, await Chart.of(store, kind, flow), step, 0)


async def why_job(store: Store, tenant_id: int, id: str) -> tuple[Row, list[Reason]]:
    """Return a job and the causes that keep it. The last one names the step that the job runs, if any."""
    job, reasons = await why_jobs.why(store, tenant_id, id)
    steps = await store.steps_by_key([job["step_id"]]) if job["step_id"] is not None else []
    for step in steps:
        kind = flows.kind_of(step)
        flow = FlowRef(kind, step["flow_id"]).public_id
        says = f"it carries out the step {step['name']} of {flow}, which is {step['state']}"
        reasons = [*reasons, Reason(FlowCause.STEP, says, todo=f"keptwork why {public_id(kind.step.name, step['id'])}")]
    return job, reasons


# --- flows


async def _of_flow(store: Store, chart: Chart, depth: int) -> list[Reason]:
    standing, damage = _standing(chart), _damage(chart)
    if standing is not None or damage:
        return [*damage, *([standing] if standing else [])]
    steps = [row for row in chart.own.values() if _goes_on(chart, row)]
    found = []
    for row in steps[:MOST_STEPS]:
        reasons = await _of_sound_step(store, chart, row, depth)
        found += [_prefixed(f"step {row['name']}", one) for one in reasons[:1]]
    return found or [Reason(FlowCause.STEP, "its next step is about to begin")]


def _goes_on(chart: Chart, row: Row) -> bool:
    """Return whether a step is running or has its own job.

    The causes of a shared job belong to the step of that job.
    """
    jobs = chart.jobs.get(row["id"], [])
    return chart.phase(row) is Phase.ACTIVE or any(job.step_id == row["id"] for job in jobs)


def _standing(chart: Chart) -> Reason | None:
    """Return the cause that the flow's own state gives, or None if its steps have the causes."""
    flow, state = chart.flow, chart.flow["state"]
    if chart.over:
        why = flow["error"] or flow["reason"]
        return Reason(FlowCause.ENDED, f"it has ended as {state}{f' ({why})' if why else ''}", todo=_again(chart))
    if chart.held:
        says = f"it has been held since {rfc3339(flow['held_at'])}: nothing more of it begins"
        return Reason(FlowCause.HELD, says, todo=f"keptwork {chart.kind.name}s release {chart.name}")
    if not chart.failing:
        return None
    if chart.kind.flow.leading_out_of(state, Verb.RESUME):
        return Reason(FlowCause.RETRY, f"it failed ({flow['error']}), and is tried again", flow["wake_at"], then=COMES)
    return _failed(chart)


def _failed(chart: Chart) -> Reason:
    failed = [row for row in chart.own.values() if chart.phase(row) is Phase.FAILED]
    steps = " or ".join(
        f"keptwork steps {verb} {chart.step_name(failed[0])}" for verb in ("skip", "reset")[: 2 * len(failed)]
    )
    says = f"it failed ({chart.flow['error'] or chart.flow['reason']}), and waits for an operator until it is abandoned"
    todo = f"keptwork workstreams retry {chart.name}{f', or {steps}' if failed else ''}"
    return Reason(FlowCause.FAILED, says, chart.flow["wake_at"], todo, COMES)


def _again(chart: Chart) -> str | None:
    bad = [row["name"] for row in chart.own.values() if chart.phase(row) in (Phase.FAILED, Phase.GONE)]
    if chart.kind.name != "workstream" or not bad:
        return None
    return f"keptwork workstreams fork {chart.name} --from {bad[0]}"


def _damage(chart: Chart, step: int | None = None) -> list[Reason]:
    found = [one for _, one in looked(chart) if one.check not in NO_DAMAGE]
    mine = [one for one in found if step is None or one.id in (step, chart.flow["id"])]
    return [_told(one) for one in mine]


def _told(finding: Finding) -> Reason:
    says = f"{finding.says}: {finding.matters}"
    return Reason(FlowCause.DAMAGE, says, todo="keptwork doctor --fix" if finding.fix else finding.todo)


# --- steps


async def _of_step(store: Store, chart: Chart, row: Row, depth: int) -> list[Reason]:
    damage = [] if chart.final(row) else _damage(chart, row["id"])
    return damage or await _of_sound_step(store, chart, row, depth)


async def _of_sound_step(store: Store, chart: Chart, row: Row, depth: int) -> list[Reason]:
    """Return the causes of a step without checking the flow for damage.

    The check is slow for thousands of steps.
    """
    if chart.final(row):
        why = row["error"] or row["reason"]
        return [Reason(FlowCause.ENDED, f"it has ended as {row['state']}{f' ({why})' if why else ''}")]
    if row["id"] in chart.jobs:
        return await _of_job(store, chart, row)
    if chart.asking(row):
        return [_asked(chart, row)]
    if chart.phase(row) is Phase.ACTIVE:
        return await _of_insides(store, chart, row, depth)
    standing = _standing(chart)
    found = [*await _dependencies(store, chart, row, depth), *([standing] if standing else []), *_room(chart, row)]
    return found or [Reason(FlowCause.STEP, "it is about to begin")]


def _room(chart: Chart, row: Row) -> list[Reason]:
    """Return the cause for an item that waits until its step's limit allows it to run."""
    parent = chart.parent(row)
    each = None if parent is None else chart.shape.steps[parent["name"]].for_each
    if parent is None or each is None or chart.phase(parent) is not Phase.ACTIVE:
        return []
    busy = len(_busy(chart, chart.elements(parent)))
    if busy < each.limit:
        return []
    says = f"it waits for room: {busy} elements of {parent['name']} are at work, and its limit is {each.limit}"
    return [Reason(FlowCause.ROOM, says, todo=f"keptwork why {chart.step_name(parent)}")]


def _busy(chart: Chart, elements: list[Row]) -> list[Row]:
    return [one for one in elements if chart.phase(one) is Phase.ACTIVE or one["id"] in chart.jobs]


async def _of_job(store: Store, chart: Chart, row: Row) -> list[Reason]:
    job = chart.jobs[row["id"]][0]
    _, reasons = await why_jobs.why(store, job.tenant_id, public_id(JOB.name, job.id))
    return [_prefixed(f"its job {public_id(JOB.name, job.id)}", one) for one in reasons]


def _asked(chart: Chart, row: Row) -> Reason:
    asked = chart.open_gate(row)
    if asked is None:
        return Reason(FlowCause.ASKED, "it waits for somebody's answer")
    says = f"it waits for somebody ({asked.scope or 'anyone'}) to approve: {asked.question}"
    return Reason(FlowCause.ASKED, says, asked.expires_at, f"keptwork approvals approve {asked.public_id}", EXPIRES)


async def _of_insides(store: Store, chart: Chart, row: Row, depth: int) -> list[Reason]:
    """Return the causes that keep a step's nested flow, its crew, or its items."""
    inner = chart.unfinished_inner(row)
    if inner and depth < DEEPEST:
        kind, flow = inner[0]
        reasons = await _of_flow(store, await Chart.of(store, kind, flow), depth + 1)
        return [_inside(kind, flow, one) for one in reasons]
    if (crew := chart.unfinished_crew(row)) is not None:
        return await _of_crew(store, crew)
    elements = [one for one in chart.elements(row) if not chart.final(one)]
    busy = _busy(chart, elements)
    found: list[Reason] = []
    for one in (busy or elements)[:MOST_STEPS]:
        reasons = await _of_step(store, chart, one, depth) if busy else []
        found += [_prefixed(one["name"], reason) for reason in reasons[:1]]
    return found or [Reason(FlowCause.STEP, f"it is {row['state']}, and what it waits for goes on")]


async def _of_crew(store: Store, crew: Row) -> list[Reason]:
    id = public_id(CREW.name, crew["id"])
    _, reasons = await why_crews.why(store, crew["tenant_id"], id)
    return [_prefixed(f"it is the crew {id}, which is {crew['state']}", one) for one in reasons]


def _inside(kind: Kind, flow: Row, reason: Reason) -> Reason:
    id = FlowRef(kind, flow["id"]).public_id
    cause = reason.cause if reason.cause is not FlowCause.STEP else FlowCause.SUBFLOW
    return reason._replace(cause=cause, says=f"it is the flow {id}, which is {flow['state']}: {reason.says}")


async def _dependencies(store: Store, chart: Chart, row: Row, depth: int) -> list[Reason]:
    """Return the unfinished steps before this step, and why the deepest is not finished.

    If there are several, the first of them is followed.
    """
    name = row["name"] if row["parent_id"] is None else str(row["name"]).partition("[")[0]
    before = _undone(chart, name)
    if not before:
        return []
    told = ", ".join(f"{one['name']} ({one['state']})" for one in before)
    says = f"it waits for {told}"
    bottom = before[0]
    while (deeper := _undone(chart, bottom["name"])) and chart.phase(bottom) is Phase.WAITING:
        bottom = deeper[0]
    found = [Reason(FlowCause.DEPENDENCY, says, todo=f"keptwork why {chart.step_name(bottom)}")]
    if chart.phase(bottom) is Phase.FAILED:
        return found
    below = await _of_step(store, chart, bottom, depth)
    return found + [_prefixed(f"step {bottom['name']}", one) for one in below[:1]]


def _undone(chart: Chart, name: str) -> list[Row]:
    before = [chart.own[one] for one in chart.shape.before[name] if one in chart.own]
    return [one for one in before if chart.phase(one) is not Phase.SATISFIED]


def _prefixed(what: str, reason: Reason) -> Reason:
    return reason._replace(says=f"{what}: {reason.says}")

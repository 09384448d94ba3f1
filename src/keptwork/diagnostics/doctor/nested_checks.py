"""Checks of approvals, crews and flows inside a flow."""

from __future__ import annotations

import json
from collections.abc import Iterator

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, LIFECYCLES, Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_checks import all_done
from keptwork.diagnostics.doctor.flow_facts import Chart, asking_states
from keptwork.diagnostics.doctor.step_checks import is_misplaced, put_back
from keptwork.errors import BadInput, NotFound
from keptwork.flows import engine as advance
from keptwork.flows.expression import Wrong
from keptwork.flows.plan import Phase, phases
from keptwork.flows.steps import approval
from keptwork.flows.steps import flow as subflows
from keptwork.flows.steps.approval import WITHDRAWN
from keptwork.flows.transaction import Row, Scene

# A nested flow whose step does not wait for it.


def orphan_flow_check(chart: Chart) -> Iterator[Finding]:
    if chart.over or chart.flow["step_id"] is None:
        return
    step = chart.around
    if step is None:
        told = "the step that stands for it is gone"
    elif phases(LIFECYCLES[step["lifecycle"]])[step["state"]] is not Phase.ACTIVE:
        told = f"the step {step['name']} that stands for it is {step['state']}"
    elif not chart.first_of_step:
        told = f"the step {step['name']} that stands for it waits for a later flow"
    else:
        return
    yield Finding(
        "orphan_flow",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but {told}",
        chart.flow["updated_at"],
        "it works for nothing",
        "give it up, with all that belongs to it",
    )


async def repair_orphan_flow(scene: Scene, chart: Chart, finding: Finding) -> None:
    await advance.give_up(scene, "the step that it was does not wait for it")


ORPHAN_FLOW = FlowCheck("orphan_flow", orphan_flow_check, repair_orphan_flow)


# An open approval request of a step that does not wait for approval.


def stray_question_check(chart: Chart) -> Iterator[Finding]:
    for row in chart.own.values():
        asked = chart.open_gate(row)
        if asked is not None and not chart.asking(row):
            yield Finding(
                "stray_question",
                chart.kind.step.name,
                row["id"],
                f"the question {asked.public_id} is open, but its step {row['name']} is {row['state']}",
                asked.created_at,
                "somebody may answer what is no longer asked",
                "withdraw the question",
            )


async def repair_stray_question(scene: Scene, chart: Chart, finding: Finding) -> None:
    await scene.tx.close_gate(scene.tenant_id, finding.id, WITHDRAWN)


STRAY_QUESTION = FlowCheck("stray_question", stray_question_check, repair_stray_question)


# A run whose waiting for approval does not match its steps.


def gate_state_check(chart: Chart) -> Iterator[Finding]:
    if chart.kind.name != "run" or chart.over or all_done(chart):
        return
    asking, waits = _asking(chart), bool(chart.kind.flow.leading_out_of(chart.flow["state"], Verb.APPROVE))
    if asking and not waits:
        yield _finding(chart, f"its step {asking[0]['name']} waits for an answer", "let it wait with its step")
    elif waits and not asking and not any(chart.phase(row) is Phase.FAILED for row in chart.own.values()):
        yield _finding(chart, "none of its steps waits for an answer", "let it go on")


def _asking(chart: Chart) -> list[Row]:
    states = asking_states(chart.kind)
    return [row for row in chart.own.values() if row["state"] in states and chart.step_kind(row) == "approval"]


def _finding(chart: Chart, but: str, fix: str) -> Finding:
    return Finding(
        "gate_state",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but {but}",
        chart.flow["updated_at"],
        "the answer, or what comes next, would be refused",
        fix,
    )


async def repair_gate_state(scene: Scene, chart: Chart, finding: Finding) -> None:
    advance.begin_flow(scene)
    scene.move_flow(Verb.GATE if _asking(chart) else Verb.APPROVE)


GATE_STATE = FlowCheck("gate_state", gate_state_check, repair_gate_state)


# A running flow step whose nested flow has finished or was never started.


def lost_flow_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.own.values():
        waits = chart.step_kind(row) == "flow" and chart.phase(row) is Phase.ACTIVE and not is_misplaced(chart, row)
        if waits and not chart.unfinished_inner(row):
            inner = chart.inner.get(row["id"])
            told = " was never started"
            if inner:
                kind, flow = inner[0]
                told = f", {public_id(kind.flow.name, flow['id'])}, is {flow['state']}"
            yield Finding(
                "lost_flow",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, but the flow inside it{told}",
                row["updated_at"],
                f"nothing will end it, and its flow {chart.name} waits for it",
                "let it become what its flow became" if inner else "start that flow",
            )


async def repair_lost_flow(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    advance.begin_flow(scene)
    await scene.write()
    if inner := chart.inner.get(row["id"]):
        kind, flow = inner[0]
        await subflows.ended(await Scene.of(scene.tx, kind, flow, scene.actor), advance.go_on)
    else:
        await _start_again(scene, row)


async def _start_again(scene: Scene, row: Row) -> None:
    (given,) = await scene.tx.outputs(scene.id, [row["name"]])
    try:
        start = await subflows.chosen(scene, row, json.loads(given.item or "null"))
    except (BadInput, NotFound, Wrong) as error:
        advance.fail_step(scene, row, str(error))
        await advance.go_on(scene, [row])
    else:
        if await subflows.start(scene, row, start):
            await advance.go_on(scene, [row])


LOST_FLOW = FlowCheck("lost_flow", lost_flow_check, repair_lost_flow)


# A running crew step whose crew has finished or was never submitted.


def lost_crew_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.own.values():
        waits = chart.step_kind(row) == "crew" and chart.phase(row) is Phase.ACTIVE and not is_misplaced(chart, row)
        if waits and chart.unfinished_crew(row) is None:
            crews = chart.crews.get(row["id"])
            told = f"{public_id(CREW.name, crews[0]['id'])} is {crews[0]['state']}" if crews else "was never submitted"
            yield Finding(
                "lost_crew",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, but its crew {told}",
                row["updated_at"],
                f"nothing will end it, and its flow {chart.name} waits for it",
                "let it become what its crew became" if crews else "submit that crew",
            )


async def repair_lost_crew(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    advance.begin_flow(scene)
    if crews := chart.crews.get(row["id"]):
        await scene.write()
        await advance.crews_ended(scene.tx, crews[:1], scene.actor)
    else:
        put_back(scene, row)
        await scene.write()
        await advance.restart(scene)


LOST_CREW = FlowCheck("lost_crew", lost_crew_check, repair_lost_crew)


# A step that waits for approval without an open approval request.


def no_question_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.own.values():
        if chart.asking(row) and chart.open_gate(row) is None and not is_misplaced(chart, row):
            yield Finding(
                "no_question",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} waits for an answer, but no question is open",
                row["updated_at"],
                f"nobody can approve it, and its flow {chart.name} waits for it",
                "ask the question again",
            )


async def repair_no_question(scene: Scene, chart: Chart, finding: Finding) -> None:
    await approval.ask(scene, step_of(scene, finding))


NO_QUESTION = FlowCheck("no_question", no_question_check, repair_no_question)

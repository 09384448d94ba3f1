"""A running flow step whose nested flow has finished or was never started."""

from __future__ import annotations

import json
from collections.abc import Iterator

from keptwork.core.ids_entities import public_id
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.diagnostics.doctor.step_checks_misplaced import is_misplaced
from keptwork.errors import BadInput, NotFound
from keptwork.flows import engine as advance
from keptwork.flows.expression import Wrong
from keptwork.flows.plan_phase import Phase
from keptwork.flows.steps import flow as subflows
from keptwork.flows.transaction import Row, Scene


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

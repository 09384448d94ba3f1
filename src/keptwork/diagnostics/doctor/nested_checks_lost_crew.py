"""A running crew step whose crew has finished or was never submitted."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import CREW
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.diagnostics.doctor.step_checks_misplaced import is_misplaced
from keptwork.diagnostics.doctor.step_checks_stalled_list import put_back
from keptwork.flows import engine as advance
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Scene


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

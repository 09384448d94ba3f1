"""A `for_each` step that runs fewer items than its limit allows."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.diagnostics.doctor.step_checks_misplaced import is_misplaced
from keptwork.flows import engine as advance
from keptwork.flows import for_each
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Row, Scene


def stalled_list_check(chart: Chart) -> Iterator[Finding]:
    if not chart.active or chart.held:
        return
    for row in chart.own.values():
        begun = chart.step_kind(row) == "list" and chart.phase(row) is Phase.ACTIVE and not is_misplaced(chart, row)
        if begun and _stalls(chart, row):
            yield Finding(
                "stalled_list",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, but too few of its {len(chart.elements(row))} elements are",
                row["updated_at"],
                f"nothing will end it, and its flow {chart.name} waits for it",
                "let its elements go on",
            )


def _stalls(chart: Chart, row: Row) -> bool:
    """Return whether items wait without a reason, or all have finished.

    Items wait without a reason if there is room or if later items have started. Failed items are another finding.
    """
    rows = chart.elements(row)
    if any(chart.phase(one) in (Phase.FAILED, Phase.GONE) for one in rows):
        return False
    for_each = chart.shape.steps[row["name"]].for_each
    waiting = [one for one in rows if not _begun(chart, one)]
    busy = sum(one["id"] in chart.jobs or chart.phase(one) is Phase.ACTIVE for one in rows)
    room = for_each is not None and busy < for_each.limit
    return not busy or bool(waiting and room) or bool(_left_out(chart, rows))


def _begun(chart: Chart, row: Row) -> bool:
    return row["id"] in chart.jobs or chart.phase(row) is not Phase.WAITING


def _left_out(chart: Chart, rows: list[Row]) -> list[Row]:
    """Return items that wait although later ones have started. A skipped item has not started."""
    begun = (one for one in rows if one["id"] in chart.jobs or one["started_at"] is not None)
    last = max((one["place"] for one in begun), default=-1)
    return [one for one in rows if not _begun(chart, one) and one["place"] < last]


async def repair_stalled_list(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    advance.begin_flow(scene)
    if not chart.elements(row):
        put_back(scene, row)
    await for_each.begin(scene, row, _left_out(chart, chart.elements(row)))
    await scene.write()
    await advance.restart(scene)


def put_back(scene: Scene, row: Row) -> None:
    """Return a step that started without its items to its initial state, to start it again."""
    if scene.kind.step.leading_out_of(row["state"], Verb.RETRY):
        scene.move(row, Verb.RETRY)
    else:
        scene.move(row, Verb.FAIL)
        scene.move(row, Verb.RESET)


STALLED_LIST = FlowCheck("stalled_list", stalled_list_check, repair_stalled_list)

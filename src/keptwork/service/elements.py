"""Steps that run once for each element of a list: so many at a time, in their order.

Those that were let go are always the first ones of the list, and of them as many are unfinished as may run at the same
time; so how many are done tells which come next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from keptwork.errors import BadInput, NotFound
from keptwork.flow.expression import Wrong
from keptwork.flow.phase import Phase, phases
from keptwork.lifecycle import Verb
from keptwork.service import subflows
from keptwork.service.flow_scene import Row, Scene, content
from keptwork.service.step_jobs import step_job
from keptwork.store.records import Birth


async def expand(scene: Scene, parent: Row, items: Sequence[Any]) -> bool:
    """A step for each element, unless they are there from an earlier round; true if it is over with that."""
    scene.move(parent, Verb.START)
    await scene.write()
    if items and not await scene.tx.element_counts(parent["id"]):
        rows = [_element(scene, parent, place, item) for place, item in enumerate(items)]
        correlation = scene.flow["correlation_id"] or scene.public_id
        birth = Birth(scene.tenant_id, scene.actor.name, None, correlation, scene.flow["trace_id"])
        await scene.tx.create_many(scene.kind.step, rows, birth)
    return await go_on(scene, parent)


async def go_on(scene: Scene, parent: Row) -> bool:
    """As many elements begin as may run at the same time; true if the step is over with that: all are done, or one
    could not begin."""
    while True:
        rows = await scene.tx.steps(scene.id, parent=parent["id"])
        if failed := [row for row in rows if scene.phase(row) is Phase.FAILED]:
            _fail(scene, parent, failed[0])
            return True
        if all(scene.phase(row) is Phase.SATISFIED for row in rows):
            await _gather(scene, parent)
            return True
        working = {job.step_id for job in await scene.tx.unfinished_jobs(scene.tree)}
        busy = [row for row in rows if row["id"] in working or scene.phase(row) is Phase.ACTIVE]
        waiting = [row for row in rows if scene.phase(row) is Phase.WAITING and row["id"] not in working]
        if not await begin(scene, parent, waiting[: max(0, _limit(scene, parent) - len(busy))]):
            return False
        await scene.write()


def _fail(scene: Scene, parent: Row, element: Row) -> None:
    error = f"{element['name']}: {element['error']}"
    scene.move(parent, Verb.FAIL, error, error=error)


async def told(scene: Scene, ended: Sequence[Row], held: bool) -> list[Row]:
    """What elements that have come to something mean to their steps; returns those of them that are over with it."""
    names = {str(row["name"]).rpartition("[")[0] for row in ended}
    await scene.look_at(names)
    over = [await _one_told(scene, scene.steps[name], ended, held) for name in sorted(names)]
    return [row for row in over if row is not None]


async def _one_told(scene: Scene, parent: Row, ended: Sequence[Row], held: bool) -> Row | None:
    mine = [row for row in ended if row["parent_id"] == parent["id"]]
    if scene.phase(parent) is not Phase.ACTIVE:
        return None
    if failed := [row for row in mine if scene.phase(row) is Phase.FAILED]:
        _fail(scene, parent, failed[0])
        return parent
    done = sum(scene.phase(row) is Phase.SATISFIED for row in mine)
    if not done:
        return None
    await scene.write()
    counts = await scene.tx.element_counts(parent["id"])
    satisfied = sum(count for state, count in counts.items() if phases(scene.kind.step)[state] is Phase.SATISFIED)
    if satisfied == sum(counts.values()):
        await _gather(scene, parent)
        return parent
    if held:
        return None
    skipped = sum(phases(scene.kind.step)[state] is Phase.SATISFIED for state in counts) > 1
    let_go = _limit(scene, parent) + satisfied
    places = range(let_go - done, min(let_go, sum(counts.values())))
    # Where somebody skipped one, those let go need not be the first ones.
    if skipped or await _begin_places(scene, parent, places):
        await scene.write()
        return parent if await go_on(scene, parent) else None
    return None


async def _begin_places(scene: Scene, parent: Row, places: Iterable[int]) -> bool:
    names = [f"{parent['name']}[{place}]" for place in places]
    return await begin(scene, parent, await scene.tx.steps(scene.id, names=names) if names else [])


async def begin(scene: Scene, parent: Row, rows: Sequence[Row]) -> bool:
    """These elements begin; true if any of them is over with that."""
    if not rows:
        return False
    given = {one.name: one.item for one in await scene.tx.outputs(scene.id, [row["name"] for row in rows])}
    for row in rows:
        scene.steps[row["name"]] = row
        await _begin_one(scene, parent, row, json.loads(given[row["name"]] or "null"))
    return any(scene.phase(row) not in (Phase.WAITING, Phase.ACTIVE) for row in rows)


async def _begin_one(scene: Scene, parent: Row, row: Row, item: Any) -> None:
    """By a job, or as a flow of its own; what cannot begin fails."""
    step = scene.shape.steps[parent["name"]]
    if step.flow is None:
        scene.jobs.append(step_job(scene, row, step, item))
        return
    try:
        start = await subflows.chosen(scene, row, item)
    except (BadInput, NotFound, Wrong) as error:
        scene.move(row, Verb.START)
        scene.move(row, Verb.FAIL, str(error), error=str(error))
        return
    scene.move(row, Verb.START)
    await subflows.start(scene, row, start)


def _limit(scene: Scene, parent: Row) -> int:
    for_each = scene.shape.steps[parent["name"]].for_each
    return for_each.limit if for_each is not None else 1


async def _gather(scene: Scene, parent: Row) -> None:
    """What came of the elements, as a list in their order."""
    found = await scene.tx.elements(parent["id"])
    items = [await content(scene.tx, scene.tenant_id, output) for output in found]
    kept = await scene.kept(json.dumps({"items": items, "count": len(items)}, separators=(",", ":")))
    scene.move(parent, Verb.SUCCEED, **kept)


def _element(scene: Scene, parent: Row, place: int, item: Any) -> dict[str, Any]:
    return {
        "flow_id": scene.id,
        "name": f"{parent['name']}[{place}]",
        "position": parent["position"],
        "max_retries": parent["max_retries"],
        "parent_id": parent["id"],
        "place": place,
        "item": json.dumps(item),
    }

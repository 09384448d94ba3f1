"""Run a step once for each item of a list, in order, with a limit on concurrent items.

Started items are normally the first items of the list, and as many of them as the limit are unfinished. The number of
finished items then determines the next ones. If some items were skipped by a condition or by an operator, the next
items are read from the database.

A condition that uses `${item}` is decided before any item starts, because the values that it uses no longer change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keptwork.core.lifecycles import Verb
from keptwork.errors import BadInput, NotFound
from keptwork.flows import expression
from keptwork.flows.definition import Step
from keptwork.flows.expression import Wrong
from keptwork.flows.plan import Phase, phases, unmet, with_item
from keptwork.flows.program_output import cut_in
from keptwork.flows.steps import flow
from keptwork.flows.steps.kind import step_job
from keptwork.flows.transaction import Row, Scene, content
from keptwork.store.contract.records import Birth


async def expand(scene: Scene, parent: Row, items: Sequence[Any]) -> bool:
    """Start a `for_each` step and create its items, unless they exist. Return whether it has finished."""
    scene.move(parent, Verb.START)
    await scene.write()
    if items and not await scene.tx.element_counts(parent["id"]):
        await make(scene, parent, items)
    return await go_on(scene, parent)


async def make(scene: Scene, parent: Row, items: Sequence[Any]) -> None:
    """Create the steps of the items without starting them."""
    rows = [_element(scene, parent, place, item) for place, item in enumerate(items)]
    correlation = scene.flow["correlation_id"] or scene.public_id
    birth = Birth(scene.tenant_id, scene.actor.name, None, correlation, scene.flow["trace_id"])
    await scene.tx.create_many(scene.kind.step, rows, birth)


async def go_on(scene: Scene, parent: Row) -> bool:
    """Start as many items as the limit allows, and return whether the step has finished.

    It has finished if all items are satisfied, or if one has failed or cannot start.
    """
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
        room = max(0, _limit(scene, parent) - len(busy))
        if not await begin(scene, parent, waiting if _step(scene, parent).sifts else waiting[:room], room):
            return False
        await scene.write()


def _fail(scene: Scene, parent: Row, element: Row) -> None:
    error = f"{element['name']}: {element['error']}"
    scene.move(parent, Verb.FAIL, error, error=error)


async def told(scene: Scene, ended: Sequence[Row], held: bool) -> list[Row]:
    """Advance the `for_each` steps of items that have changed, and return the finished steps."""
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
    # Skipped items leave gaps, so the started items might not be the first ones.
    if await (_begin_next(scene, parent, counts) if skipped else _begin_places(scene, parent, places)):
        await scene.write()
        return parent if await go_on(scene, parent) else None
    return None


async def _begin_places(scene: Scene, parent: Row, places: Iterable[int]) -> bool:
    names = [f"{parent['name']}[{place}]" for place in places]
    return await begin(scene, parent, await scene.tx.steps(scene.id, names=names) if names else [])


async def _begin_next(scene: Scene, parent: Row, counts: Mapping[str, int]) -> bool:
    """Start the next items up to the limit, and return whether one of them has finished.

    Fewer items than the limit have a job, so twice the limit includes the items that come next.
    """
    limit, initial = _limit(scene, parent), scene.kind.step.initial.name
    first = await scene.tx.elements_in(parent["id"], initial, 2 * limit)
    working = {job.step_id for job in await scene.tx.unfinished_jobs(scene.tree)}
    waiting = [row for row in first if row["id"] not in working]
    active = sum(count for state, count in counts.items() if phases(scene.kind.step)[state] is Phase.ACTIVE)
    return await begin(scene, parent, waiting[: max(0, limit - active - len(first) + len(waiting))])


async def begin(scene: Scene, parent: Row, rows: Sequence[Row], room: int | None = None) -> bool:
    """Start items in order, at most `room` of them, and return whether one has finished already.

    An item that does not meet the step's condition is skipped.
    """
    if not rows:
        return False
    found = await scene.tx.outputs(scene.id, [row["name"] for row in rows])
    given = {one.name: json.loads(one.item or "null") for one in found}
    scene.steps |= {row["name"]: row for row in rows}
    wanted = await _sifted(scene, _step(scene, parent), rows, given)
    if all(scene.phase(row) is not Phase.FAILED for row in rows):
        for row in wanted[:room]:
            await _begin_one(scene, parent, row, given[row["name"]])
    return any(scene.phase(row) not in (Phase.WAITING, Phase.ACTIVE) for row in rows)


async def _sifted(scene: Scene, step: Step, rows: Sequence[Row], given: Mapping[str, Any]) -> Sequence[Row]:
    """Return the items to run, and skip the others. An item whose condition cannot be decided fails."""
    if not step.sifts:
        return rows
    condition = expression.condition(step.when or "")
    wanted, look = [], await scene.values(condition.references.values(), cut=step.takes_cut)
    for row in rows:
        try:
            if expression.met(condition, with_item(look, given[row["name"]], cut=step.takes_cut)):
                wanted.append(row)
            else:
                scene.move(row, Verb.SKIP, unmet(step))
        except Wrong as error:
            _fail_at_once(scene, row, error)
    return wanted


async def _begin_one(scene: Scene, parent: Row, row: Row, item: Any) -> None:
    """Start an item with a job or as a nested flow. An item that cannot start fails."""
    step = _step(scene, parent)
    if step.flow is None:
        scene.jobs.append(step_job(scene, row, step, item))
        return
    try:
        start = await flow.chosen(scene, row, item)
    except (BadInput, NotFound, Wrong) as error:
        _fail_at_once(scene, row, error)
        return
    scene.move(row, Verb.START)
    await flow.start(scene, row, start)


def _fail_at_once(scene: Scene, row: Row, error: Exception) -> None:
    scene.move(row, Verb.START)
    scene.move(row, Verb.FAIL, str(error), error=str(error))


def _step(scene: Scene, parent: Row) -> Step:
    return scene.shape.steps[parent["name"]]


def _limit(scene: Scene, parent: Row) -> int:
    for_each = _step(scene, parent).for_each
    return for_each.limit if for_each is not None else 1


async def _gather(scene: Scene, parent: Row) -> None:
    """Finish a `for_each` step with the outputs of its items, as a list in order."""
    found = await scene.tx.elements(parent["id"])
    items = [await content(scene.tx, scene.tenant_id, output) for output in found]
    output = json.dumps({"items": items, "count": len(items)}, separators=(",", ":"))
    scene.move(parent, Verb.SUCCEED, cut_in(output), **await scene.kept(output))


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

"""Flows and their steps as rows: made together, amended beside their moves, and found again."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.core.lifecycles import JOB, RUN, RUN_STEP, WORKSTREAM, WORKSTREAM_STEP
from keptwork.errors import StoreError
from keptwork.store import NewJob, Store
from keptwork.store.contract.flows_steps import STEP_COLUMNS, FlowFilter, Output
from keptwork.store.contract.records import Birth
from keptwork.store.contract.store import Reader, Writer
from keptwork.store.sqlite import session
from tests.conformance.promises import keeps
from tests.conformance.stage import Verbs, claim, entity, log, moved, worker
from tests.conformance.times import SetClock

OURS = 1
MADE = {"output": '{"n": 1}', "output_hash": None, "cost_micros": 7}


async def steps_of(store: Verbs, flow: int, *names: str, **more: Any) -> list[int]:
    """Steps of a workstream, one after the other."""
    rows = [{"flow_id": flow, "name": name, "position": place, **more} for place, name in enumerate(names)]
    return await store.create_many(WORKSTREAM_STEP, rows)


async def succeed(store: Store, step: int) -> None:
    await moved(store, WORKSTREAM_STEP, step, "dependencies_met")
    await moved(store, WORKSTREAM_STEP, step, "success", values=MADE)


async def a_flow(store: Store, **columns: Any) -> int:
    return await store.create(WORKSTREAM, max_retries=1, **columns)


def keys(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


@keeps(
    Writer.create_many,
    "Create entities of one kind in their initial state, each with its first event",
    "The IDs increase in the order of the rows, which must all have the same columns",
)
async def test_many_are_made_with_an_event_each_and_keys_that_grow(store: Store, other_tenant: int) -> None:
    flow = await a_flow(store)
    birth = Birth(other_tenant, "ann", "because", "c-1", "t-1")
    rows = [{"flow_id": flow, "name": f"s{n}", "position": n, "item": f'{{"n":{n}}}'} for n in range(130)]
    made = await store.create_many(RUN_STEP, rows, birth)
    assert made == sorted(set(made))
    found = [await entity(store, RUN_STEP, id) for id in made]
    assert [(row["name"], row["position"], row["item"]) for row in found] == [
        (row["name"], row["position"], row["item"]) for row in rows
    ]
    said = {"tenant_id": other_tenant, "actor": "ann", "reason": "because", "correlation_id": "c-1", "trace_id": "t-1"}
    assert {name: found[0][name] for name in said} == said
    assert {(row["state"], row["seq"], row["lifecycle"]) for row in found} == {("PENDING", 1, "run-step")}
    events = await log(store, entity="run-step")
    assert [(event.entity_id, event.seq, event.trigger, event.actor) for event in events] == [
        (id, 1, "create", "ann") for id in made
    ]
    assert await store.create_many(RUN_STEP, []) == []


@keeps(Writer.create_many, "Create all of them or none")
async def test_one_that_cannot_be_made_leaves_none_of_them(store: Store) -> None:
    flow, before = await a_flow(store), await store.event_count()
    with pytest.raises(StoreError):
        await steps_of(store, flow, "one", "two", "one")
    assert await store.steps(flow) == []
    assert await store.event_count() == before


async def test_columns_that_an_entity_does_not_have_are_refused(store: Store) -> None:
    with pytest.raises(KeyError, match="run-step has no column colour"):
        await store.create_many(RUN_STEP, [{"name": "a", "colour": "red"}])


@keeps(
    Writer.amend,
    "Set columns that no move sets, without a move or an event",
    "Return the number of entities",
)
async def test_columns_are_set_beside_the_moves(store: Store, other_tenant: int) -> None:
    ours = [await a_flow(store) for _ in range(3)]
    theirs = await a_flow(store, tenant_id=other_tenant)
    before, was = await store.event_count(), await entity(store, WORKSTREAM, ours[0])
    assert await store.amend(WORKSTREAM, [*ours[:2], theirs, 5], OURS, held_at=3, max_retries=9) == 2
    now = await entity(store, WORKSTREAM, ours[0])
    assert {name: value for name, value in now.items() if value != was[name]} == {"held_at": 3, "max_retries": 9}
    assert [(await entity(store, WORKSTREAM, id))["held_at"] for id in (*ours, theirs)] == [3, 3, None, None]
    assert await store.event_count() == before
    with pytest.raises(KeyError, match="state of workstream cannot be set beside a move"):
        await store.amend(WORKSTREAM, ours, OURS, state="S_SUCCESS")


@keeps(
    Reader.steps,
    "Return the steps of a flow in order, without their inputs and outputs",
    "They are all steps, those with these names, or the items of one step",
)
async def test_steps_are_found_by_flow_by_name_and_by_what_they_are_elements_of(store: Store) -> None:
    flow, other = await a_flow(store), await a_flow(store)
    c, a, b = await steps_of(store, flow, "c", "a", "b")
    rows = [{"flow_id": flow, "name": f"b[{n}]", "parent_id": b, "place": n, "position": 2} for n in (1, 0)]
    one, zero = await store.create_many(WORKSTREAM_STEP, rows)
    await steps_of(store, other, "a")
    assert set(keys(await store.steps(flow))) == {c, a, b, zero, one}
    assert keys(await store.steps(flow))[:2] == [c, a]
    assert keys(await store.steps(flow, names=["b", "c", "none"])) == [c, b]
    assert keys(await store.steps(flow, names=[])) == []
    assert keys(await store.steps(flow, parent=b)) == [zero, one]
    (row,) = await store.steps(flow, names=["a"])
    assert tuple(row) == STEP_COLUMNS
    whole = await entity(store, WORKSTREAM_STEP, a)
    assert row == {name: whole[name] for name in STEP_COLUMNS}


@keeps(Reader.outputs, "Return the results and inputs of these steps of a flow")
@keeps(Reader.elements, "Return the results of the items of a `for_each` step, in order")
async def test_what_came_of_steps_and_of_their_elements_is_read(store: Store) -> None:
    flow = await a_flow(store)
    a, b = await steps_of(store, flow, "a", "b", item='"given"')
    await succeed(store, a)
    (output,) = await store.outputs(flow, ["a", "none"])
    assert output == Output("a", "S_SUCCESS", '{"n": 1}', None, '"given"')
    assert {one.name: one.output for one in await store.outputs(flow, ["a", "b"])} == {"a": '{"n": 1}', "b": None}
    rows = [
        {"flow_id": flow, "name": f"b[{n}]", "parent_id": b, "place": n, "position": 1, "item": str(n)} for n in (2, 1)
    ]
    two, _ = await store.create_many(WORKSTREAM_STEP, rows)
    await succeed(store, two)
    found = await store.elements(b)
    assert [(one.name, one.state, one.item) for one in found] == [
        ("b[1]", "S_PENDING", "1"),
        ("b[2]", "S_SUCCESS", "2"),
    ]
    assert [one.output for one in found] == [None, '{"n": 1}']


@keeps(Reader.step_counts, "Return the number of steps of a flow per state, without the items of `for_each` steps")
@keeps(
    Reader.any_unfinished,
    "Return whether a flow has unfinished steps in states other than `besides`",
    "Items of `for_each` steps are not counted",
)
async def test_steps_are_counted_by_state_and_the_unfinished_are_known(store: Store) -> None:
    flow, other = await a_flow(store), await a_flow(store)
    a, b, c = await steps_of(store, flow, "a", "b", "c")
    await store.create_many(WORKSTREAM_STEP, [{"flow_id": flow, "name": "c[0]", "parent_id": c, "place": 0}])
    await steps_of(store, other, "x")
    await succeed(store, a)
    await moved(store, WORKSTREAM_STEP, b, "dependencies_met")
    assert await store.step_counts(flow) == {"S_SUCCESS": 1, "S_RUNNING": 1, "S_PENDING": 1}
    assert await store.any_unfinished(flow)
    assert await store.any_unfinished(flow, ["S_RUNNING"])
    assert not await store.any_unfinished(flow, ["S_RUNNING", "S_PENDING"])
    await moved(store, WORKSTREAM_STEP, b, "success", values=MADE)
    await succeed(store, c)
    assert not await store.any_unfinished(flow)
    assert await store.any_unfinished(other)
    assert await store.step_counts(1 << 50) == {}


@keeps(Reader.unfinished_jobs, "Return the unfinished jobs of a tree of flows")
async def test_the_jobs_that_work_for_a_tree_are_found_until_they_end(store: Store) -> None:
    tree, other = await a_flow(store), await a_flow(store)
    steps = await steps_of(store, tree, "a", "b", "c")
    ids = await store.enqueue([NewJob("k", step_id=step, tree_id=tree) for step in steps])
    await store.enqueue([NewJob("k", tree_id=other), NewJob("k")])
    await moved(store, JOB, ids[1], "cancel")
    (job,) = [one for one in await claim(store, await worker(store), 1, start=True) if one.id == ids[0]]
    assert [one.id for one in await store.unfinished_jobs(tree)] == [ids[0], ids[2]]
    assert (await store.unfinished_jobs(tree))[0] == job
    assert (job.step_id, job.tree_id, job.crew_id) == (steps[0], tree, None)


@keeps(Reader.subflows, "Return the flows of this kind that run for a step of another flow, newest first")
@keeps(Reader.flows, "Return at most `limit` flows of one kind, newest first, with IDs below `after`")
async def test_flows_are_listed_and_those_inside_others_found_by_their_step(store: Store, other_tenant: int) -> None:
    outer = await a_flow(store, name="outer")
    (step,) = await steps_of(store, outer, "inner")
    inner = [await a_flow(store, name="inner", step_id=step, tree_id=outer) for _ in range(2)]
    run = await store.create(RUN, name="outer", step_id=step)
    theirs = await a_flow(store, name="outer", tenant_id=other_tenant)
    later = await a_flow(store, name="outer")
    await moved(store, WORKSTREAM, later, "start_execution")
    assert keys(await store.subflows(WORKSTREAM, step)) == inner[::-1]
    assert keys(await store.subflows(RUN, step)) == [run]
    assert await store.subflows(WORKSTREAM, 1 << 50) == []
    assert keys(await store.flows(WORKSTREAM)) == [later, theirs, outer]
    assert keys(await store.flows(RUN, FlowFilter(inside=True))) == [run]
    wanted = FlowFilter(OURS, inside=True)
    assert keys(await store.flows(WORKSTREAM, wanted)) == [later, *inner[::-1], outer]
    assert keys(await store.flows(WORKSTREAM, wanted, after=inner[1], limit=1)) == [inner[0]]
    assert keys(await store.flows(WORKSTREAM, FlowFilter(OURS, name="outer"))) == [later, outer]
    assert keys(await store.flows(WORKSTREAM, FlowFilter(OURS, states=("S_RUNNING",)))) == [later]
    assert await store.flows(WORKSTREAM, FlowFilter(OURS, states=())) == []
    made = (await entity(store, WORKSTREAM, later))["created_at"]
    assert keys(await store.flows(WORKSTREAM, FlowFilter(OURS, made_since=made))) == [later]
    assert keys(await store.flows(WORKSTREAM, FlowFilter(OURS, made_before=made))) == [outer]
    assert (await store.flows(WORKSTREAM))[0] == await entity(store, WORKSTREAM, later)


@keeps(Reader.flows_to_wake, "Return at most `limit` flows of one kind whose wake time has passed, the earliest first")
async def test_flows_whose_time_has_come_are_found_the_longest_first(timed: Store, clock: SetClock) -> None:
    soon, sooner, never = [await a_flow(timed, wake_at=at) for at in (clock.now + 20, clock.now + 10, None)]
    run = await timed.create(RUN, wake_at=clock.now + 5)
    assert await timed.flows_to_wake(WORKSTREAM, 9) == []
    await clock.advance(20)
    assert keys(await timed.flows_to_wake(WORKSTREAM, 9)) == [sooner, soon]
    assert keys(await timed.flows_to_wake(WORKSTREAM, 1)) == [sooner]
    assert keys(await timed.flows_to_wake(RUN, 9)) == [run]
    assert await entity(timed, WORKSTREAM, never) not in await timed.flows_to_wake(WORKSTREAM, 9)


@keeps(Reader.element_counts, "Return the number of items of a step per state")
async def test_elements_are_counted_by_state(store: Store) -> None:
    flow = await a_flow(store)
    (parent,) = await steps_of(store, flow, "each")
    elements = await steps_of(store, flow, "each[0]", "each[1]", "each[2]", parent_id=parent)
    await succeed(store, elements[0])
    assert await store.element_counts(parent) == {"S_SUCCESS": 1, "S_PENDING": 2}
    assert await store.element_counts(elements[0]) == {}


@keeps(
    Reader.elements_in,
    "Return the first items of a step that are in this state, in order",
    "There are at most `limit`, without their inputs and outputs",
)
async def test_the_first_elements_in_a_state_are_found_in_order(store: Store) -> None:
    flow = await a_flow(store)
    (parent,) = await steps_of(store, flow, "each")
    rows = [
        {"flow_id": flow, "name": f"each[{n}]", "parent_id": parent, "place": n, "position": 0} for n in (3, 1, 2, 0)
    ]
    three, one, two, zero = await store.create_many(WORKSTREAM_STEP, rows)
    await succeed(store, one)
    assert keys(await store.elements_in(parent, "S_PENDING", 2)) == [zero, two]
    assert keys(await store.elements_in(parent, "S_PENDING", 9)) == [zero, two, three]
    assert keys(await store.elements_in(parent, "S_SUCCESS", 9)) == [one]
    assert await store.elements_in(zero, "S_PENDING", 9) == []
    (row, *_) = await store.elements_in(parent, "S_PENDING", 1)
    assert tuple(row) == STEP_COLUMNS


@keeps(Reader.flow_by_key, "Return the flow that was created with an idempotency key, or None if there is none")
async def test_a_flow_is_found_by_the_key_that_made_it(store: Store, other_tenant: int) -> None:
    flow = await a_flow(store, key="order-17")
    found = await store.flow_by_key(WORKSTREAM, OURS, "order-17")
    assert found is not None
    assert found["id"] == flow
    assert await store.flow_by_key(WORKSTREAM, other_tenant, "order-17") is None
    assert await store.flow_by_key(RUN, OURS, "order-17") is None


@keeps(Reader.steps_by_key, "Return those of these steps that exist, in any flow, without their inputs and outputs")
async def test_steps_are_found_by_their_keys(store: Store) -> None:
    first, second = await a_flow(store), await store.create(RUN)
    (one,) = await steps_of(store, first, "a")
    (two,) = await store.create_many(RUN_STEP, [{"flow_id": second, "name": "a", "position": 0}])
    found = await store.steps_by_key([one, two, 17])
    assert {row["id"]: row["lifecycle"] for row in found} == {one: "workstream-step", two: "run-step"}
    assert set(found[0]) == set(STEP_COLUMNS)


async def test_rows_too_large_for_one_statement_are_all_there_in_their_order(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_IN_AN_ARRAY", 1_000)
    rows = [{"flow_id": 7, "name": f"s{place:02}", "position": place, "item": f'"{"x" * 300}"'} for place in range(21)]
    made = await store.create_many(WORKSTREAM_STEP, rows)
    assert made == sorted(set(made))
    found = await store.steps(7)
    assert [(row["id"], row["name"], row["position"]) for row in found] == [
        (id, row["name"], row["position"]) for id, row in zip(made, rows, strict=True)
    ]
    events = [event for event in await log(store) if event.entity == "workstream-step"]
    assert [event.entity_id for event in events] == made


async def test_a_row_that_is_no_text_is_refused_and_leaves_nothing(store: Store) -> None:
    with pytest.raises((UnicodeError, StoreError)):
        await store.create_many(WORKSTREAM_STEP, [{"flow_id": 7, "name": "half of a pair: \ud800"}] * 2)
    assert await store.steps(7) == []

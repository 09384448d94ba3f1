"""Forks of workstreams: what is kept, what runs anew, and where they come from."""

from __future__ import annotations

import json

import pytest

from keptwork.audit.verify import verify
from keptwork.core.lifecycles import WORKSTREAM
from keptwork.diagnostics.doctor import runner
from keptwork.errors import BadInput
from keptwork.flows import commands as flows
from keptwork.flows import forks
from keptwork.flows.transaction import Actor
from keptwork.store import EventFilter, Store
from tests.service.flow_driver import Driver, flow, states, step

GRAPH = (step("a"), step("b", "a"), step("c", "b"), step("d", "a"), step("e", when="1 == 2"))


async def ended(store: Store) -> flows.FlowRef:
    ref = await flows.start(store, flow(*GRAPH, inputs={"n": {"type": "integer", "default": 1}}))
    await Driver(store).to_the_end(lambda name: name == "c")
    return ref


async def test_what_does_not_come_after_the_step_is_kept_and_the_rest_runs_anew(store: Store) -> None:
    old = await ended(store)
    assert (await states(store, old))[0] == "S_ABANDONED"
    new = await forks.fork(store, old, "b", actor=Actor("ann"))
    state, steps = await states(store, new)
    assert state == "S_RUNNING"
    assert steps == {"a": "S_SUCCESS", "b": "S_PENDING", "c": "S_PENDING", "d": "S_SUCCESS", "e": "S_SKIPPED"}
    assert [json.loads(job.payload)["step"] for job in await store.unfinished_jobs(new.id)] == ["b"]
    assert await runner.examine(store) == []
    await Driver(store).to_the_end()
    assert (await states(store, new))[0] == "S_SUCCESS"
    assert (await verify(store)).clean


async def test_kept_results_are_the_same_and_say_where_they_come_from(store: Store) -> None:
    old = await ended(store)
    new = await forks.fork(store, old, "c", actor=Actor("ann"))
    before, after = await store.outputs(old.id, ["a", "b", "d"]), await store.outputs(new.id, ["a", "b", "d"])
    assert {one.name: one.output for one in before} == {one.name: one.output for one in after}
    (row,) = await store.steps(new.id, names=["b"])
    events = await store.events(EventFilter(entity_id=row["id"]))
    assert [(event.to_state, event.reason) for event in events[1:]] == [
        ("S_RUNNING", f"kept from {old.public_id}"),
        ("S_SUCCESS", f"kept from {old.public_id}"),
    ]


async def test_a_fork_goes_into_the_queue_of_the_old_one_unless_that_was_a_command_s_own(store: Store) -> None:
    for queue, expected in (("gpu", "gpu"), ("run-0123", "default")):
        ref = await flows.start(store, flow(step("a")), queue=queue)
        new = await forks.fork(store, ref, "a", actor=Actor("ann"))
        assert [job.queue for job in await store.unfinished_jobs(new.id)] == [expected]


async def test_lineage_is_seen_from_both_ends(store: Store) -> None:
    old = await ended(store)
    new = await forks.fork(store, old, "a", {"n": 7}, actor=Actor("ann"))
    (row,) = await store.rows(WORKSTREAM, [new.id])
    assert row["forked_from"] == old.id
    assert json.loads(row["inputs"]) == {"n": 7}
    assert [one["id"] for one in await store.forks(old.id)] == [new.id]


async def test_what_cannot_be_forked_is_refused_and_nothing_is_made(store: Store) -> None:
    old = await ended(store)
    run = await flows.start(store, flow(step("a"), kind="run"))
    for ref, name, says in ((old, "z", "no step 'z'; it has: a, b"), (run, "a", "only a workstream can be forked")):
        with pytest.raises(BadInput, match=says):
            await forks.fork(store, ref, name, actor=Actor("ann"))
    with pytest.raises(BadInput, match="the input n"):
        await forks.fork(store, old, "a", {"n": "seven"}, actor=Actor("ann"))
    assert await store.forks(old.id) == []

"""Flows that failed and are resumed: only what did not succeed runs again, at any depth."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from keptwork.audit.verify import verify
from keptwork.core.lifecycles import RUN
from keptwork.diagnostics.doctor import runner
from keptwork.errors import BadInput
from keptwork.flows import commands as flows
from keptwork.flows import commands_pick_up, continuation
from keptwork.flows.definition import Flow
from keptwork.flows.transaction import Actor
from keptwork.store import Store
from tests.service.flow_driver import Driver, Failing, flow, states, step

ANN = Actor("ann", "resumed")
DEEP = flow(step("d1"), step("d2"), step("d3"), name="deep", kind="run")
EACH = step("each", "i1", for_each={"items": [1, 2, 3, 4], "limit": 2})
INNER = flow(step("i1"), EACH, step("dive", "i1", flow="deep"), step("i2", "each", "dive"), name="inner")
OUTER = flow(step("a"), step("sub", "a", flow="inner"), step("z", "sub"))
LIBRARY = {"inner": INNER, "deep": DEEP}


class Told(Driver):
    """A driver that counts which steps were carried out."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.ran: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    async def until_idle(self, failing: Failing = lambda _: False) -> Counter[str]:
        """What ran now; time does not pass."""
        before = self.ran.copy()
        while jobs := await self.start():
            self.ran.update(json.loads(job.payload)["step"] for job in jobs)
            await self.settle(jobs, failing)
            rows = await self.store.steps_by_key([job.step_id or 0 for job in jobs])
            self.done.update(row["name"] for row in rows if row["state"] in ("S_SUCCESS", "SUCCEEDED"))
        return self.ran - before


async def sound(store: Store) -> None:
    assert await runner.examine(store) == []
    assert (await verify(store)).clean


@pytest.mark.parametrize("kind", ["workstream", "run"])
async def test_resumed_flow_runs_only_what_did_not_succeed_at_any_depth(store: Store, kind: str) -> None:
    outer = OUTER if kind == "workstream" else flow(*OUTER.model_dump(exclude_defaults=True)["steps"], kind="run")
    ref, driver = await flows.start(store, outer, library=LIBRARY), Told(store)
    for failing in ("each[1]", "d2", "each[3]", "d3", "i2", ""):
        await driver.until_idle(lambda name, failing=failing: name == failing)  # type: ignore[misc]
        ref = await commands_pick_up.find_resumable(store, ref, ANN)
        (row,) = await store.rows(ref.kind.flow, [ref.id])
        if not ref.kind.flow.state(row["state"]).final:
            await commands_pick_up.pick_up(store, ref, ANN)
    assert (await states(store, ref))[0] in ("S_SUCCESS", "SUCCEEDED")
    every = ["a", "i1", *(f"each[{n}]" for n in range(4)), "d1", "d2", "d3", "i2", "z"]
    assert driver.done == dict.fromkeys(every, 1), "what succeeded does not run again"
    await sound(store)


async def test_failed_run_is_continued_by_one_fork_however_often_it_is_asked_for(store: Store) -> None:
    ref, driver = await flows.start(store, DEEP), Told(store)
    await driver.until_idle(lambda name: name == "d2")
    assert (await states(store, ref))[0] == "FAILED"
    new = await commands_pick_up.find_resumable(store, ref, ANN)
    assert (
        await commands_pick_up.find_resumable(store, ref, ANN) == await continuation.resumed_run(store, ref, ANN) == new
    )
    (row,) = await store.rows(RUN, [new.id])
    assert (row["forked_from"], row["resumes"]) == (ref.id, 1)
    assert (await states(store, new))[1] == {"d1": "SUCCEEDED", "d2": "PENDING", "d3": "PENDING"}
    await driver.until_idle()
    assert (await states(store, ref))[0] == "FAILED", "a final state stays final"
    assert (await states(store, await commands_pick_up.find_resumable(store, ref, ANN)))[0] == "SUCCEEDED"
    assert driver.ran == {"d1": 1, "d2": 2, "d3": 1}
    await sound(store)


async def test_list_of_flows_continues_with_each_item_where_it_stopped(store: Store) -> None:
    many = step("many", flow="deep", for_each={"items": [1, 2, 3], "limit": 1})
    ref, driver = await flows.start(store, flow(many), library={"deep": DEEP}), Told(store)
    failures = iter([False, True])
    await driver.until_idle(lambda name: name == "d2" and next(failures, False))
    await commands_pick_up.pick_up(store, ref, ANN)
    assert await driver.until_idle() == {"d1": 1, "d2": 2, "d3": 2}, "the second item's d2, and all of the third"
    assert (await states(store, ref))[1] == dict.fromkeys(["many", "many[0]", "many[1]", "many[2]"], "S_SUCCESS")
    await sound(store)


async def test_flow_that_would_get_other_inputs_starts_from_its_first_step(store: Store) -> None:
    inner = flow(step("i1"), step("i2", "i1"), name="inner", inputs={"n": {"type": "integer"}})
    ref = await flows.start(store, flow(step("sub", flow="inner", **{"with": {"n": 1}})), library={"inner": inner})
    driver = Told(store)
    await driver.until_idle(lambda name: name == "i2")
    async with store.transaction() as tx:
        await tx.execute("UPDATE workstreams SET inputs = '{\"n\": 2}' WHERE step_id IS NOT NULL")
    await commands_pick_up.pick_up(store, ref, ANN)
    assert await driver.until_idle() == {"i1": 1, "i2": 1}


async def test_failed_flow_inside_that_waits_for_an_operator_is_retried_with_the_outer_one(store: Store) -> None:
    inner = flow(step("i1"), step("i2", "i1"), name="inner", abandon_after="1h")
    ref = await flows.start(store, flow(step("sub", flow="inner")), library={"inner": inner})
    driver = Told(store)
    await driver.until_idle(lambda name: name == "i2")
    await commands_pick_up.pick_up(store, ref, ANN)
    assert await driver.until_idle() == {"i2": 1}
    assert (await states(store, ref))[0] == "S_SUCCESS"


async def test_final_flow_that_cannot_be_resumed_says_what_can_be_done(store: Store) -> None:
    ref = await flows.start(store, Flow.model_validate({"name": "f", "steps": [step("a")]}))
    await flows.cancel(store, ref, ANN)
    assert await commands_pick_up.find_resumable(store, ref, ANN) == ref
    with pytest.raises(BadInput, match=f"S_ABANDONED, which is final.*workstreams fork {ref.public_id} --from STEP"):
        await commands_pick_up.pick_up(store, ref, ANN)

"""Steps whose job somebody ended past the service: the follow-up lets their flows go on."""

from __future__ import annotations

import pytest

from keptwork.flows import commands as flows
from keptwork.maintenance import reconciler
from keptwork.maintenance.periodic import Outage
from keptwork.maintenance.reconciler import FollowUp
from keptwork.store import EventFilter, Store
from tests.conformance.by_hand import hand_on
from tests.service.flow_driver import Driver, flow, states, step


@pytest.mark.parametrize(
    ("trigger", "state", "became"), [("succeed", "succeeded", "S_SUCCESS"), ("fail", "failed", "S_FAILED")]
)
async def test_a_job_ended_by_hand_does_not_hang_its_flow(
    store: Store, database_url: str, trigger: str, state: str, became: str
) -> None:
    ref, driver = await flows.start(store, flow(step("a"), step("b", "a"), kind="workstream")), Driver(store)
    (job,) = await driver.start()
    hand = await hand_on(database_url)
    await hand.run(f"UPDATE jobs SET state = '{state}', seq = seq + 1, move = '{trigger}' WHERE id = {job.id}")
    await hand.close()
    follow_up = FollowUp(store, Outage())
    assert await follow_up.run_once() == 1
    assert (await states(store, ref))[1]["a"] == became
    (row,) = await store.steps(ref.id, names=["a"])
    events = await store.events(EventFilter(entity_id=row["id"]))
    assert events[-1].actor == reconciler.ACTOR
    assert await follow_up.run_once() == 0
    await driver.to_the_end()
    assert (await states(store, ref))[0] == ("S_SUCCESS" if became == "S_SUCCESS" else "S_ABANDONED")


async def test_what_goes_its_way_is_left_alone(store: Store) -> None:
    await flows.start(store, flow(step("a", retries=2), step("b", "a"), max_retries=1))
    driver = Driver(store)
    for _ in range(4):
        jobs = await driver.start()
        assert await reconciler.catch_up(store) == 0
        await driver.settle(jobs, lambda name: name == "b")
        assert await reconciler.catch_up(store) == 0

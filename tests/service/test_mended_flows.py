"""What operators and time do to flows that are not as they should be: each ends, or waits for what moves it."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.core import ids
from keptwork.core.clock import ManualClock
from keptwork.crews import commands as crews
from keptwork.diagnostics import diagnose, overrides
from keptwork.diagnostics.doctor import runner
from keptwork.errors import AlreadyDecided
from keptwork.flows import approvals
from keptwork.flows import commands as flows
from keptwork.flows import engine as advance
from keptwork.flows.transaction import Actor, Scene
from keptwork.maintenance import reconciler
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store, open_store
from tests.conformance.by_hand import hand_on
from tests.conformance.stage import claim, worker
from tests.service.flow_driver import Driver, flow, states, step

OPERATOR = Actor("ann", "she says so")
LIST = {"for_each": {"items": [1, 2, 3, 4], "limit": 2}}
TEAM = {"id": "team", "crew": {"task": "it", "workers": 3}}


async def row(store: Store, ref: flows.FlowRef, name: str) -> dict[str, Any]:
    (found,) = await store.steps(ref.id, names=[name])
    return found


async def failed_list(store: Store, *failing: str) -> tuple[flows.FlowRef, Driver]:
    """A flow that failed because elements of a list did."""
    ref = await flows.start(store, flow(step("each", **LIST), step("after", "each")))
    driver = Driver(store)
    await driver.settle(await driver.start(), lambda name: name in failing)
    assert (await states(store, ref))[0] == "S_FAILED"
    return ref, driver


async def ended_well(store: Store, ref: flows.FlowRef, driver: Driver) -> dict[str, str]:
    while jobs := await driver.start():
        await driver.settle(jobs)
    state, steps = await states(store, ref)
    assert (state, await runner.examine(store)) == ("S_SUCCESS", [])
    return steps


async def test_a_list_is_skipped_with_its_elements_and_the_flow_goes_on(store: Store) -> None:
    ref, driver = await failed_list(store, "each[0]")
    await flows.skip(store, await row(store, ref, "each"), OPERATOR)
    assert await runner.examine(store) == []
    steps = await ended_well(store, ref, driver)
    assert (steps["each"], steps["each[0]"], steps["each[1]"]) == ("S_SKIPPED", "S_ABANDONED", "S_SUCCESS")
    assert steps["after"] == "S_SUCCESS"


async def test_what_runs_of_a_list_that_is_skipped_ends_with_it(store: Store) -> None:
    ref = await flows.start(store, flow(step("each", **LIST), step("after", "each")))
    driver = Driver(store)
    first, second = await driver.start()
    await driver.settle([first], lambda _: True)
    await flows.skip(store, await row(store, ref, "each"), OPERATOR)
    assert [job.id for job in await store.unfinished_jobs(ref.id) if job.id == second.id] == []
    await ended_well(store, ref, driver)


@pytest.mark.parametrize("name", ["each", "each[0]"])
async def test_a_list_whose_element_failed_begins_anew_by_either_of_them(store: Store, name: str) -> None:
    ref, driver = await failed_list(store, "each[0]")
    await flows.reset(store, await row(store, ref, name), OPERATOR)
    assert set((await ended_well(store, ref, driver)).values()) == {"S_SUCCESS"}


async def test_a_list_goes_on_without_an_element_that_is_skipped(store: Store) -> None:
    ref, driver = await failed_list(store, "each[0]")
    await flows.skip(store, await row(store, ref, "each[0]"), OPERATOR)
    steps = await ended_well(store, ref, driver)
    assert (steps.pop("each[0]"), set(steps.values())) == ("S_SKIPPED", {"S_SUCCESS"})


async def test_a_list_is_in_order_when_an_element_is_skipped_before_its_turn(store: Store) -> None:
    ref = await flows.start(store, flow(step("each", **LIST)))
    await flows.skip(store, await row(store, ref, "each[3]"), OPERATOR)
    assert await runner.examine(store) == []
    steps = await ended_well(store, ref, Driver(store))
    assert (steps.pop("each[3]"), set(steps.values())) == ("S_SKIPPED", {"S_SUCCESS"})


async def test_a_list_stays_failed_while_another_of_its_elements_is(store: Store) -> None:
    ref, driver = await failed_list(store, "each[0]", "each[1]")
    await flows.reset(store, await row(store, ref, "each[0]"), OPERATOR)
    assert (await states(store, ref))[0] == "S_FAILED"
    await flows.skip(store, await row(store, ref, "each[1]"), OPERATOR)
    await ended_well(store, ref, driver)


async def test_a_workstream_tried_again_by_an_operator_has_its_whole_timeout(tmp_path: Any) -> None:
    clock = ManualClock()
    store = await open_store(f"sqlite:///{tmp_path}/keptwork.db", clock=clock)
    ref = await flows.start(store, flow(step("a"), timeout="1m"))
    driver = Driver(store)
    await driver.settle(await driver.start(), lambda _: True)
    clock.advance(3_600_000_000)
    await flows.retry(store, ref, OPERATOR)
    await flows.wake(store)
    assert (await states(store, ref))[0] == "S_RUNNING"
    clock.advance(61_000_000)
    await flows.wake(store)
    assert (await states(store, ref))[0] == "S_ABANDONED"
    await store.close()


async def asked_and_overridden(store: Store) -> flows.FlowRef:
    """A question is open at a step that somebody has put into another state."""
    ref = await flows.start(store, flow(step("ask", approval={"expires": "1ms"}), step("b", "ask")))
    id = ids.public("step", (await row(store, ref, "ask"))["id"])
    await overrides.overridden(store, 1, id, "S_SUCCESS", reason="asked on the phone", actor="ann")
    return ref


async def test_a_question_at_a_step_that_was_overridden_does_not_keep_time_from_moving_others(store: Store) -> None:
    await asked_and_overridden(store)
    other = await flows.start(store, flow(step("sign", approval={"expires": "1ms"})))
    while await store.expired_gates(10):
        await flows.wake(store)
    assert (await states(store, other))[0] == "S_FAILED"
    assert await approvals.listed(store, 1) == []


async def test_an_answer_to_a_question_at_a_step_that_was_overridden_says_that_it_is_withdrawn(store: Store) -> None:
    await asked_and_overridden(store)
    (asked,) = await approvals.listed(store, 1)
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        await approvals.decide(store, 1, asked.public_id, approvals.APPROVED, by="ann")


async def test_a_step_whose_crew_is_more_than_its_quota_fails_with_it(store: Store) -> None:
    await crews.set_quotas(store, 1, {0: 1})
    ref = await flows.start(store, flow(TEAM, step("b", "team")))
    assert await states(store, ref) == ("S_FAILED", {"team": "S_FAILED", "b": "S_PENDING"})
    assert "are more than the quota of depth 0, which is 1" in (await row(store, ref, "team"))["error"]


async def test_a_flow_whose_crew_waits_for_workers_says_who_has_them(store: Store) -> None:
    await crews.set_quotas(store, 1, {0: 3})
    await flows.start(store, flow(TEAM))
    second = await flows.start(store, flow(TEAM))
    (why,) = (await diagnose.explained(store, 1, second.public_id)).reasons
    assert why.cause == "quota"
    assert "which is PENDING: it needs 3 workers of depth 0, where 3 of 3 are at work" in why.says


@pytest.mark.parametrize("by", ["an operator", "time"])
async def test_a_crew_is_called_off_though_a_worker_starts_another_step_at_that_moment(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    store = await open_store(postgres_copy)
    ref = await flows.start(store, flow(TEAM, step("b"), step("c", "team")))
    (crew,) = await store.crews_of_step((await row(store, ref, "team"))["id"])
    started: list[int] = []
    withdraw = advance.withdraw

    async def withdraw_slowly(scene: Scene, reason: str) -> None:
        await withdraw(scene, reason)
        started.extend([] if started else [job.id for job in await Driver(store).start()])

    monkeypatch.setattr(advance, "withdraw", withdraw_slowly)
    if by == "time":
        await end_time_of_crews(postgres_copy)
        await reconciler.mend(store)
    else:
        await crews.cancel(store, 1, ids.public("crew", crew["id"]))
    assert started
    assert await states(store, ref) == ("S_FAILED", {"team": "S_FAILED", "b": "S_RUNNING", "c": "S_PENDING"})
    await store.close()


async def end_time_of_crews(url: str) -> None:
    """The time of all crews is over."""
    hand = await hand_on(url)
    await hand.run("UPDATE crews SET deadline_at = 1")
    await hand.close()


async def held_inside(store: Store) -> tuple[flows.FlowRef, flows.FlowRef]:
    """A held flow, and the one inside the one inside it."""
    library = {"middle": flow(step("sub", flow="inner")), "inner": flow(step("x"), step("y", "x"), name="inner")}
    ref = await flows.start(store, flow(step("sub", flow="middle"), step("c", "sub")), library=library)
    (job,) = await store.unfinished_jobs(ref.id)
    (x,) = await store.steps_by_key([job.step_id or 0])
    await flows.hold(store, ref, OPERATOR)
    return ref, flows.FlowRef(ref.kind, x["flow_id"])


async def test_flows_inside_a_held_one_are_held_and_let_go_with_it(store: Store) -> None:
    ref, _ = await held_inside(store)
    driver = Driver(store)
    assert (await driver.start(), await runner.examine(store)) == ([], [])
    await flows.hold(store, ref, OPERATOR)  # once more changes nothing
    await flows.let_go(store, ref, OPERATOR)
    assert set((await ended_well(store, ref, driver)).values()) == {"S_SUCCESS"}


async def test_what_runs_inside_a_held_flow_ends_and_nothing_follows(store: Store) -> None:
    ref, inner = await held_inside(store)
    driver = Driver(store)
    await flows.let_go(store, ref, OPERATOR)
    jobs = await driver.start()
    await flows.hold(store, ref, OPERATOR)
    await driver.settle(jobs)
    assert await driver.start() == []
    assert (await states(store, inner))[1] == {"x": "S_SUCCESS", "y": "S_PENDING"}


async def test_a_flow_inside_that_was_held_by_itself_stays_so_when_the_outer_one_is_let_go(store: Store) -> None:
    ref, inner = await held_inside(store)
    await flows.let_go(store, inner, OPERATOR)
    await flows.hold(store, inner, OPERATOR)
    await flows.let_go(store, ref, OPERATOR)
    driver = Driver(store)
    assert await driver.start() == []
    await flows.let_go(store, inner, OPERATOR)
    await ended_well(store, ref, driver)


async def test_a_flow_that_ended_although_a_step_did_not_says_so(store: Store) -> None:
    ref = await flows.start(store, flow(step("a")))
    driver = Driver(store)
    await ended_well(store, ref, driver)
    step_of_it = f"{ref.public_id}/a"
    await overrides.overridden(store, 1, step_of_it, "S_FAILED", reason="it did fail", actor="ann")
    why, ended = (await diagnose.explained(store, 1, ref.public_id)).reasons
    assert (why.cause, why.todo, ended.cause) == ("damage", "keptwork doctor --fix", "ended")
    assert "it is S_SUCCESS, but a is S_FAILED" in why.says


async def test_a_crew_of_a_flow_goes_on_when_a_worker_of_it_dies(store: Store) -> None:
    team = {"id": "team", "crew": {"task": "it", "workers": 2, "call": "platform:node"}}
    ref = await flows.start(store, flow(team))
    died = await claim(store, await worker(store), 2, start=True, lease_us=-60_000_000)
    await Reaper(store, lambda: None, Outage()).run_once()
    assert len(died) == 2
    assert (await states(store, ref))[0] == "S_RUNNING"
    await ended_well(store, ref, Driver(store))


async def test_a_crew_put_back_to_its_beginning_is_begun_again(store: Store) -> None:
    ref = await flows.start(store, flow(TEAM))
    (crew,) = await store.crews_of_step((await row(store, ref, "team"))["id"])
    id = ids.public("crew", crew["id"])
    await overrides.overridden(store, 1, id, "SUBMITTED", reason="once more", actor="ann")
    assert "nobody has looked at it since" in (await diagnose.explained(store, 1, id)).reasons[0].says
    await reconciler.mend(store)
    await ended_well(store, ref, Driver(store))

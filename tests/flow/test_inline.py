"""Inline steps: carried out several at a time by one job, and otherwise like any step."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from keptwork import Context, Keptwork
from keptwork.audit import verify
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, WORKSTREAM_STEP
from keptwork.diagnostics import overrides, why_flows
from keptwork.diagnostics.doctor import runner
from keptwork.errors import BadFlow
from keptwork.flows import approvals, validation
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.flows.inline_batch import Carried, Stretch
from keptwork.flows.transaction import Actor
from keptwork.jobs import complete, outcome
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.outcomes import PermanentError, Snooze
from keptwork.store import EventFilter, JobFilter, Store
from keptwork.workers import inline_runner
from tests.conformance.stage import worker
from tests.flow.flow_log import faults, known
from tests.support.database_time import open_timed

CALLS: Counter[str] = Counter()
HOLD: list[Callable[[], Any]] = []


async def plus(name: str, number: int = 0) -> int:
    CALLS[name] += 1
    return number + 1


def plainly(name: str) -> tuple[str, int]:
    CALLS[name] += 1
    return name, threading.get_ident()


async def with_context(ctx: Context, name: str) -> str:
    CALLS[name] += 1
    return ctx.job_id


async def fails(name: str, times: int) -> str:
    CALLS[name] += 1
    if CALLS[name] <= times:
        raise RuntimeError(f"{name} fails for the time {CALLS[name]}")
    return name


async def dawdles(name: str, seconds: float) -> str:
    CALLS[name] += 1
    await asyncio.sleep(seconds)
    return name


async def odd(name: str) -> object:
    CALLS[name] += 1
    return object()


async def changes(name: str, given: list[int]) -> int:
    given.append(99)
    return len(given)


async def echo(name: str, given: Any) -> Any:
    return given


async def sleeps(ctx: Context, name: str) -> None:
    await ctx.sleep("1h")


async def large(name: str, size: int) -> str:
    return "x" * size


async def holds(name: str) -> str:
    CALLS[name] += 1
    await HOLD[0]()
    return name


async def cancels_itself(name: str, waits: bool) -> str:
    CALLS[name] += 1
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    if waits:
        await asyncio.sleep(0)
    return name


async def does_not_end(name: str, seconds: float) -> str:
    CALLS[name] += 1
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(left)
    return name


def exhausted(name: str) -> Any:
    CALLS[name] += 1
    return next(iter([]))


SHARED: list[int] = []
LAST = threading.Event()


def blocks(name: str) -> None:
    """Until the last of them has come."""
    CALLS[name] += 1
    if len(CALLS) == 24:
        LAST.set()
    assert LAST.wait(60)


async def shares(name: str, given: Any = None) -> list[int]:
    SHARED.append(len(SHARED))
    return SHARED


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the last test, and no slice of time is too short for this machine."""
    monkeypatch.setattr(inline_runner, "SLICE_US", 60_000_000)
    monkeypatch.setattr(inline_runner, "PATIENCE_SECONDS", 60.0)
    SHARED.clear()
    CALLS.clear()
    HOLD.clear()


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    app = Keptwork(database_url)
    yield app
    await app.close()


def step(id: str, *after: str, does: str = "plus", given: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    call = {"call": f"{__name__}:{does}", "with": {"name": id, **(given or {})}, "inline": True}
    return {"id": id, **call, **({"depends_on": list(after)} if after else {}), **more}


def flow(*steps: dict[str, Any], **more: Any) -> Flow:
    return Flow.model_validate({"name": "test", "steps": list(steps), **more})


async def carried_out(app: Keptwork, definition: Flow, **given: Any) -> tuple[flows.FlowRef, Store]:
    store = await app.open()
    ref = await flows.start(store, definition, given)
    await app.work(until_idle=True)
    return ref, store


async def states(store: Store, ref: flows.FlowRef) -> tuple[str, dict[str, str]]:
    (row,) = await store.rows(ref.kind.flow, [ref.id])
    return row["state"], {step["name"]: step["state"] for step in await store.steps(ref.id)}


async def jobs(store: Store) -> list[dict[str, Any]]:
    return await store.jobs(JobFilter(), limit=1_000, newest_first=False)


async def in_order(store: Store) -> None:
    """Nothing began too early, twice or too late, the log rebuilds every row, and the doctor has nothing to say."""
    assert faults(await known(store)) == []
    assert list((await verify.verify(store)).problems) == []
    assert [one for one in await runner.examine(store) if one.check != "blocked"] == []


async def test_a_chain_is_carried_out_by_one_job_and_every_step_has_its_events_in_order(app: Keptwork) -> None:
    names = [f"s{place}" for place in range(30)]
    chain = [step(names[0])] + [
        step(name, before, given={"number": f"${{{before}.value}}"}) for before, name in pairwise(names)
    ]
    ref, store = await carried_out(app, flow(*chain[::-1]))
    assert (await states(store, ref))[0] == "S_SUCCESS"
    (output,) = await store.outputs(ref.id, ["s29"])
    assert output.output == '{"value":30}'
    assert len(await jobs(store)) == 1
    assert set(CALLS.values()) == {1}
    steps = {row["id"]: row for row in await store.steps(ref.id)}
    log = await store.events(EventFilter(correlation_id=ref.public_id), limit=1_000)
    of_steps = [event for event in log if event.entity == "workstream-step" and event.seq > 1]
    assert [(steps[one.entity_id]["name"], one.trigger) for one in of_steps] == [
        (name, trigger) for name in names for trigger in ("dependencies_met", "success")
    ]
    assert [one.ts for one in of_steps] == sorted(one.ts for one in of_steps)
    assert {row["job_id"] for row in steps.values()} == {(await jobs(store))[0]["id"]}
    await in_order(store)


async def test_steps_that_begin_together_share_jobs(app: Keptwork) -> None:
    wide = [step(f"s{place}") for place in range(250)]
    ref, store = await carried_out(app, flow(*wide, step("end", *(one["id"] for one in wide))))
    assert (await states(store, ref))[0] == "S_SUCCESS"
    assert len(await jobs(store)) in (3, 4)  # the last step goes with whichever of them ends last, or after them
    assert set(CALLS.values()) == {1}
    await in_order(store)


@pytest.mark.acceptance
async def test_a_step_may_wait_for_others_that_are_done_elsewhere(app: Keptwork) -> None:
    definition = flow(
        step("a"),
        {"id": "tool", "command": ["true"], "depends_on": ["a"]},
        step("b", "tool", "a", given={"number": "${tool.exit_code}"}),
        step("c", "b", "a", given={"number": "${b.value}"}),
        step("d", "c", "tool", given={"number": "${inputs.n}"}),
        inputs={"n": {"type": "integer", "default": 7}},
    )
    ref, store = await carried_out(app, definition)
    assert (await states(store, ref))[0] == "S_SUCCESS"
    found = {one.name: json.loads(one.output or "") for one in await store.outputs(ref.id, ["b", "c", "d"])}
    assert found == {"b": {"value": 1}, "c": {"value": 2}, "d": {"value": 8}}
    assert len(await jobs(store)) == 3
    await in_order(store)


async def test_what_a_later_step_is_given_is_what_the_database_would_give_it(app: Keptwork) -> None:
    """A tuple has become a list on the way there; and functions that are not async run in a thread."""
    ref, store = await carried_out(
        app,
        flow(
            step("a", does="plainly"), step("b", "a", does="plainly"), step("c", "b", given={"number": "${b.value[1]}"})
        ),
    )
    found = {one.name: json.loads(one.output or "")["value"] for one in await store.outputs(ref.id, ["a", "b", "c"])}
    assert found["b"][0] == "b"
    assert found["c"] == found["b"][1] + 1
    assert threading.get_ident() not in (found["a"][1], found["b"][1])


async def test_one_that_raises_is_called_again_by_a_job_of_its_own_with_its_retries(app: Keptwork) -> None:
    bad = step("bad", "a", does="fails", given={"times": 2}, retries=1, backoff="1ms")
    ref, store = await carried_out(app, flow(step("a"), bad, step("b", "a"), step("c", "bad", "b")))
    assert (await states(store, ref))[0] == "S_SUCCESS"
    assert CALLS == {"a": 1, "b": 1, "c": 1, "bad": 3}
    (row,) = await store.steps(ref.id, names=["bad"])
    assert (row["retry_count"], row["attempts"]) == (1, 2)
    await in_order(store)


async def test_one_that_fails_for_good_fails_the_flow_and_says_why(app: Keptwork) -> None:
    ref, store = await carried_out(
        app, flow(step("a"), step("bad", "a", does="fails", given={"times": 9}), step("b", "bad"))
    )
    state, steps = await states(store, ref)
    assert (state, steps) == ("S_FAILED", {"a": "S_SUCCESS", "bad": "S_FAILED", "b": "S_PENDING"})
    (row,) = await store.rows(ref.kind.flow, [ref.id])
    assert "bad fails for the time 2" in row["error"]
    await in_order(store)


async def test_companions_of_one_that_is_tried_again_do_not_wait_for_it(app: Keptwork) -> None:
    first = step("first", does="fails", given={"times": 1}, retries=1, backoff="1h")
    ref, store = await carried_out(app, flow(first, step("b"), step("c"), step("d", "b")))
    assert await states(store, ref) == (
        "S_RUNNING",
        {"first": "S_RETRYING", "b": "S_SUCCESS", "c": "S_SUCCESS", "d": "S_SUCCESS"},
    )
    await in_order(store)


@pytest.mark.parametrize("wrong", ["odd", "nowhere"])
async def test_what_cannot_be_kept_or_called_is_told_as_of_any_step(app: Keptwork, wrong: str) -> None:
    ref, store = await carried_out(app, flow(step("a"), step("bad", "a", does=wrong)))
    (row,) = await store.steps(ref.id, names=["bad"])
    assert row["state"] == "S_FAILED"
    assert ("returned what cannot be kept" if wrong == "odd" else "has no nowhere") in row["error"]


async def test_a_large_result_is_kept_by_its_hash(app: Keptwork) -> None:
    definition = flow(step("a"), step("big", "a", does="large", given={"size": 20_000}), step("c", "big"))
    ref, store = await carried_out(app, definition)
    (output,) = await store.outputs(ref.id, ["big"])
    assert output.output_hash is not None
    assert len(await store.blob(1, output.output_hash) or b"") > 20_000
    assert (await states(store, ref))[0] == "S_SUCCESS"


async def test_one_that_wants_a_context_has_a_job_of_its_own(app: Keptwork) -> None:
    ref, store = await carried_out(app, flow(step("a"), step("own", "a", does="with_context"), step("b", "own")))
    (output,) = await store.outputs(ref.id, ["own"])
    (row,) = await store.steps(ref.id, names=["own"])
    assert json.loads(output.output or "")["value"].startswith("job_")
    assert [job["step_id"] for job in await jobs(store)].count(row["id"]) == 1
    assert CALLS == {"a": 1, "own": 1, "b": 1}


@pytest.mark.acceptance
async def test_one_that_takes_long_does_not_keep_the_others_from_being_handed_in(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_runner, "PATIENCE_SECONDS", 0.05)
    slow = step("slow", "a", does="dawdles", given={"seconds": 0.3})
    ref, store = await carried_out(app, flow(step("a"), step("b", "a"), slow, step("c", "slow")))
    assert (await states(store, ref))[0] == "S_SUCCESS"
    assert CALLS["slow"] == 2
    ended = {row["name"]: row["completed_at"] for row in await store.steps(ref.id)}
    assert ended["slow"] - ended["b"] > 200_000


@pytest.mark.acceptance
async def test_one_that_does_not_end_when_it_is_asked_to_keeps_nobody_waiting(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_runner, "PATIENCE_SECONDS", 0.05)
    slow = step("slow", "a", does="does_not_end", given={"seconds": 0.5})
    ref, store = await carried_out(app, flow(step("a"), step("b", "a"), slow))
    assert await states(store, ref) == ("S_SUCCESS", dict.fromkeys(("a", "b", "slow"), "S_SUCCESS"))
    ended = {row["name"]: row["completed_at"] for row in await store.steps(ref.id)}
    assert ended["slow"] - ended["b"] > 400_000
    await in_order(store)


@pytest.mark.parametrize("waits", [True, False])
async def test_one_that_cancels_the_task_it_runs_in_does_so_for_itself_alone(app: Keptwork, waits: bool) -> None:
    culprit = step("c", "b", does="cancels_itself", given={"waits": waits})
    ref, store = await carried_out(app, flow(step("a"), step("b", "a"), culprit, step("d", "a"), step("e", "d")))
    state, steps = await states(store, ref)
    others = dict.fromkeys("abde", "S_SUCCESS")
    assert {name: steps[name] for name in others} == others
    assert {name: CALLS[name] for name in others} == dict.fromkeys(others, 1)
    assert (state, steps["c"]) == (("S_FAILED", "S_FAILED") if waits else ("S_SUCCESS", "S_SUCCESS"))
    await in_order(store)


@pytest.mark.parametrize("inline", [True, False])
async def test_a_function_that_raises_stop_iteration_fails_like_any_other(app: Keptwork, inline: bool) -> None:
    """No future can hold it, and whoever waited for one waited for ever."""
    async with asyncio.timeout(60):
        ref, store = await carried_out(app, flow(step("a"), step("b", "a", does="exhausted", inline=inline)))
    assert await states(store, ref) == ("S_FAILED", {"a": "S_SUCCESS", "b": "S_FAILED"})
    (row,) = await store.steps(ref.id, names=["b"])
    assert "StopIteration" in row["error"]


async def test_what_came_of_a_step_is_what_it_returned_whatever_others_do_to_that(app: Keptwork) -> None:
    later = step("b", "a", does="shares", given={"given": "${a.value}"})
    ref, store = await carried_out(app, flow(step("a", does="shares"), later, step("c", "b", does="shares")))
    found = {one.name: json.loads(one.output or "")["value"] for one in await store.outputs(ref.id, ["a", "b", "c"])}
    assert found == {"a": [0], "b": [0, 1], "c": [0, 1, 2]}


@pytest.mark.parametrize("inline", [True, False])
async def test_two_signs_stand_for_one_whoever_carries_the_step_out(app: Keptwork, inline: bool) -> None:
    plain = [step(name, does="echo", given={"given": "$${HOME}"}, inline=inline) for name in ("a", "b")]
    more = step("c", "a", does="echo", given={"given": "$${HOME}"}, when="${a.value} != 1", inline=inline)
    ref, store = await carried_out(app, flow(*plain, more))
    found = {one.name: json.loads(one.output or "")["value"] for one in await store.outputs(ref.id, ["a", "b", "c"])}
    assert found == dict.fromkeys("abc", "${HOME}")


async def test_functions_that_block_hold_up_no_others(app: Keptwork) -> None:
    """As many threads as there are calls: a few for all would be taken by a few."""
    crowd = [step(f"s{place}", does="blocks", inline=False) for place in range(24)]
    store = await app.open()
    ref = await flows.start(store, flow(*crowd))
    LAST.clear()
    async with asyncio.timeout(60):
        await app.work(until_idle=True, concurrency=24)
    assert (await states(store, ref))[0] == "S_SUCCESS"


@pytest.mark.acceptance
async def test_slow_ones_are_spread_over_jobs(app: Keptwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not get done in a few milliseconds is shared out in portions that do."""
    monkeypatch.setattr(inline_runner, "SLICE_US", 10_000)
    wide = [step(f"s{place}", does="dawdles", given={"seconds": 0.02}) for place in range(40)]
    store = await app.open()
    ref = await flows.start(store, flow(*wide))
    await app.work(until_idle=True, concurrency=20)
    assert (await states(store, ref))[0] == "S_SUCCESS"
    assert len(await jobs(store)) >= 20
    assert max(CALLS.values()) == 1
    await in_order(store)


async def test_conditions_are_left_to_the_engine(app: Keptwork) -> None:
    definition = flow(step("a"), step("b", "a", when="${a.value} == 2"), step("c", "b"), step("d", "c", when="true"))
    ref, store = await carried_out(app, definition)
    assert await states(store, ref) == (
        "S_SUCCESS",
        {"a": "S_SUCCESS", "b": "S_SKIPPED", "c": "S_SUCCESS", "d": "S_SUCCESS"},
    )
    await in_order(store)


async def test_a_run_stops_at_a_question_and_goes_on_behind_it(app: Keptwork) -> None:
    steps = [step("a"), step("b"), {"id": "ask", "approval": {}}, step("c"), step("d")]
    ref, store = await carried_out(app, flow(*steps, kind="run"))
    assert await states(store, ref) == (
        "WAITING_APPROVAL",
        {"a": "SUCCEEDED", "b": "SUCCEEDED", "ask": "WAITING_APPROVAL", "c": "PENDING", "d": "PENDING"},
    )
    (asked,) = await approvals.listed(store, 1)
    await approvals.decide(store, 1, asked.public_id, approvals.APPROVED, by="ann")
    await app.work(until_idle=True)
    assert (await states(store, ref))[0] == "SUCCEEDED"
    assert set(CALLS.values()) == {1}
    await in_order(store)


async def test_a_flow_that_is_held_meanwhile_keeps_what_its_job_was_of_and_nothing_more(app: Keptwork) -> None:
    store = await app.open()
    ref = await flows.start(store, flow(step("a"), step("b"), step("c", "b", does="holds"), step("d", "c")))
    HOLD.append(lambda: flows.hold(store, ref, Actor("ann")))
    await app.work(until_idle=True)
    assert await states(store, ref) == (
        "S_RUNNING",
        {"a": "S_SUCCESS", "b": "S_PENDING", "c": "S_PENDING", "d": "S_PENDING"},
    )
    HOLD[0] = lambda: asyncio.sleep(0)
    await flows.let_go(store, ref, Actor("ann"))
    await app.work(until_idle=True)
    assert (await states(store, ref))[0] == "S_SUCCESS"
    await in_order(store)


async def test_a_flow_that_is_cancelled_meanwhile_stays_cancelled(app: Keptwork) -> None:
    store = await app.open()
    ref = await flows.start(store, flow(step("a"), step("b", "a", does="holds"), step("c", "b")))
    HOLD.append(lambda: flows.cancel(store, ref, Actor("ann")))
    await app.work(until_idle=True)
    assert set((await states(store, ref))[1].values()) == {"S_ABANDONED"}
    await in_order(store)


async def test_companions_of_one_that_sleeps_do_not_wait_for_it(app: Keptwork) -> None:
    ref, store = await carried_out(app, flow(step("a", does="sleeps"), step("b"), step("c", "b")))
    assert await states(store, ref) == ("S_RUNNING", {"a": "S_RUNNING", "b": "S_SUCCESS", "c": "S_SUCCESS"})
    await in_order(store)


async def test_a_function_that_changes_what_it_is_given_changes_it_for_nobody_else(app: Keptwork) -> None:
    def with_given(name: str, does: str, given: Any, *after: str) -> dict[str, Any]:
        return step(name, *after, does=does, given={"given": given})

    definition = flow(
        with_given("a", "echo", [1, 2]),
        with_given("m", "changes", "${a.value}", "a"),
        with_given("s", "echo", "${a.value}", "m"),
        with_given("l", "changes", [1], "s"),
    )
    for _ in range(2):
        ref, store = await carried_out(app, definition)
        found = {
            one.name: json.loads(one.output or "")["value"] for one in await store.outputs(ref.id, ["m", "s", "l"])
        }
        assert found == {"m": 3, "s": [1, 2], "l": 2}


async def test_what_was_made_of_a_step_that_was_skipped_meanwhile_counts_for_nothing(app: Keptwork) -> None:
    """What comes after it finds no value of it, as after any step that was skipped."""
    store = await app.open()
    ref = await flows.start(store, flow(step("a"), step("y", "a"), step("z", "y", given={"number": "${y.value}"})))
    (row,) = await store.steps(ref.id, names=["y"])
    await flows.skip(store, row, Actor("ann"))
    await app.work(until_idle=True)
    state, steps = await states(store, ref)
    assert (state, steps) == ("S_FAILED", {"a": "S_SUCCESS", "y": "S_SKIPPED", "z": "S_FAILED"})
    (row,) = await store.steps(ref.id, names=["z"])
    assert "y did not run" in row["error"]
    await in_order(store)


async def test_companions_of_a_job_that_comes_too_late_for_its_own_step_begin_all_the_same(app: Keptwork) -> None:
    store = await app.open()
    ref = await flows.start(store, flow(step("a"), step("b"), step("c", "b")))
    (job,) = await store.claim(await worker(store), ["default"], 9, 60_000_000, claim_id=1, start=True)
    (row,) = await store.steps(ref.id, names=["a"])
    id = public_id(WORKSTREAM_STEP.name, row["id"])
    await overrides.overridden(store, 1, id, "S_SUCCESS", reason="it is done", actor="ann")
    said = Stretch({}, carried=(Carried("b", "{}", 1, 1),), along=("b",))
    assert await complete.applied(store, [outcome.settle(job, None, said, lambda: 0.5, "w:1")]) == []
    await app.work(until_idle=True)
    assert await states(store, ref) == ("S_SUCCESS", dict.fromkeys("abc", "S_SUCCESS"))


async def test_a_job_that_waited_meanwhile_does_not_carry_out_companions_that_have_a_job_of_their_own(
    store: Store,
) -> None:
    """Whoever says so is not believed: that job would be left without a step."""
    ref = await flows.start(store, flow(step("a"), step("b"), step("c", "b")))
    who = await worker(store)
    (job,) = await store.claim(who, ["default"], 9, 60_000_000, claim_id=1, start=True)
    await complete.applied(store, [outcome.settle(job, None, Snooze("0s"), lambda: 0.5, "w:1")])
    (again,) = await store.claim(who, ["default"], 1, 60_000_000, claim_id=2, start=True)
    assert again.id == job.id
    said = Stretch({}, 20, (Carried("b", "{}", 15, 5), Carried("c", "{}", 5, 5)), along=("b",))
    assert await complete.applied(store, [outcome.settle(again, None, said, lambda: 0.5, "w:1")]) == []
    assert (await states(store, ref))[1] == {"a": "S_SUCCESS", "b": "S_PENDING", "c": "S_PENDING"}
    assert [json.loads(row["payload"])["step"] for row in await jobs(store) if row["completed_at"] is None] == ["b"]


async def test_a_failure_told_again_does_not_fail_a_companion_of_the_next_round(store: Store) -> None:
    """The answer was lost; by the time it is sent again, the step waits in another round, along with another step."""
    ref = await flows.start(store, flow(step("w", does="echo"), step("a"), max_retries=3))
    who = await worker(store)
    (job,) = await store.claim(who, ["default"], 9, 60_000_000, claim_id=1, start=True)
    alone = Stretch({}, along=("a",), alone=frozenset({"a"}))
    await complete.applied(store, [outcome.settle(job, None, alone, lambda: 0.5, "w:1")])
    (job,) = await store.claim(who, ["default"], 9, 60_000_000, claim_id=2, start=True)
    failure = outcome.settle(job, None, outcome.Raised(PermanentError("no")), lambda: 0.5, "w:1")
    assert await complete.applied(store, [failure]) == []
    await flows.retry(store, ref, Actor("ann"))
    before = await store.event_count()
    assert await complete.applied(store, [failure]) == []
    assert await store.event_count() == before
    assert (await states(store, ref))[1] == {"w": "S_SUCCESS", "a": "S_PENDING"}


async def test_after_the_death_of_a_worker_steps_go_one_by_one(database_url: str) -> None:
    """One of them may have been the reason: a job of its own finds it, and not one worker after the other."""
    timed = await open_timed(database_url)
    store = timed.store
    ref = await flows.start(store, flow(step("a"), step("b"), step("c", "a"), step("d", "c")))
    await store.claim(await worker(store), ["default"], 9, 1_000_000, claim_id=1, start=True)  # and dies
    await timed.advance(2_000_000)
    await Reaper(store, lambda: None, Outage()).run_once()
    await timed.close()
    app = Keptwork(database_url)
    await app.work(until_idle=True)
    store = await app.open()
    assert (await states(store, ref))[0] == "S_SUCCESS"
    rows = await jobs(store)
    assert len(rows) == 4
    assert sorted(json.loads(row["payload"]).get("careful", 0) for row in rows) == [0, 199, 200, 200]
    await in_order(store)
    await app.close()


async def test_a_worker_that_knows_nothing_of_companions_leaves_them_to_others(store: Store) -> None:
    ref = await flows.start(store, flow(step("a"), step("b"), step("c")))
    (job,) = await store.claim(await worker(store), ["default"], 9, 60_000_000, claim_id=1, start=True)
    assert json.loads(job.payload)["along"] == ["b", "c"]
    assert await complete.applied(store, [outcome.settle(job, None, {}, lambda: 0.5, "w:1")]) == []
    (next_one,) = [row for row in await jobs(store) if row["completed_at"] is None]
    assert (await states(store, ref))[1] == {"a": "S_SUCCESS", "b": "S_PENDING", "c": "S_PENDING"}
    assert json.loads(next_one["payload"])["step"] == "b"
    assert json.loads(next_one["payload"])["along"] == ["c"]


async def test_companions_are_told_of_by_why_and_are_no_finding_of_the_doctor(store: Store) -> None:
    ref = await flows.start(store, flow(step("a"), step("b")))
    (job,) = await jobs(store)
    assert await runner.examine_flow(store, ref) == []
    (row,) = await store.steps(ref.id, names=["b"])
    _, reasons = await why_flows.why_step(store, 1, public_id(WORKSTREAM_STEP.name, row["id"]))
    assert public_id(JOB.name, job["id"]) in reasons[0].says
    _, reasons = await why_flows.why(store, 1, ref.public_id)
    assert [one.says.partition(":")[0] for one in reasons] == ["step a"]
    await flows.resume(store, ref, Actor("ann"))
    assert len(await jobs(store)) == 1


async def test_a_job_that_several_steps_share_is_one_that_is_left_when_their_flow_is_over(store: Store) -> None:
    ref = await flows.start(store, flow(step("a"), step("b"), step("c")))
    await overrides.overridden(store, 1, ref.public_id, "S_SUCCESS", reason="it is done", actor="ann")
    (found,) = await runner.examine_flow(store, ref)
    assert found.says.endswith("c is S_PENDING, 1 of its jobs has not ended")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"for_each": {"items": [1]}}, "for_each has no meaning in a step with inline: true"),
        ({"timeout": "5s"}, "timeout has no meaning in a step with inline: true"),
        ({"queue": "other"}, "queue has no meaning in a step with inline: true"),
    ],
)
def test_what_would_be_passed_over_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(BadFlow, match=says):
        validation.insist(flow(step("a", **more)))


def test_only_functions_can_be_inline() -> None:
    with pytest.raises(ValueError, match="inline belongs to a step of kind call, not to command"):
        flow({"id": "a", "command": ["true"], "inline": True})

"""Flows from their start to their end: what runs, in which order, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.core import ids
from keptwork.core.clock import ManualClock
from keptwork.core.lifecycles import JOB
from keptwork.diagnostics import overrides
from keptwork.errors import BadInput, BelongsToStep
from keptwork.flows import commands as flows
from keptwork.flows import create
from keptwork.flows import engine as advance
from keptwork.flows.definition import Flow
from keptwork.flows.plan import Phase, phases
from keptwork.flows.transaction import Actor, Row, Scene
from keptwork.jobs import complete, outcome, queries
from keptwork.maintenance import reconciler
from keptwork.outcomes import PermanentError
from keptwork.store import Store, open_store
from tests.conformance.stage import worker

ORDER: list[str] = []


def note(name: str, **given: Any) -> dict[str, Any]:
    ORDER.append(name)
    return {"name": name, **given}


FAILURES: dict[str, int] = {}


def fail_at_first(name: str, times: int) -> str:
    FAILURES[name] = FAILURES.get(name, 0) + 1
    if FAILURES[name] <= times:
        raise RuntimeError(f"{name} fails for the time {FAILURES[name]}")
    return name


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    ORDER.clear()
    FAILURES.clear()
    app = Keptwork(database_url)
    yield app
    await app.close()


def step(id: str, *after: str, **more: Any) -> dict[str, Any]:
    call = {} if {"approval", "flow", "call", "crew"} & more.keys() else {"call": f"{__name__}:note"}
    said = more.pop("given", {})
    with_ = {"with": {"name": id, **said}} if "call" in call else {}
    return {"id": id, **call, **with_, **({"depends_on": list(after)} if after else {}), **more}


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


async def test_steps_run_after_what_they_depend_on(app: Keptwork) -> None:
    ref, store = await carried_out(app, flow(step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c")))
    state, steps = await states(store, ref)
    assert state == "S_SUCCESS"
    assert set(steps.values()) == {"S_SUCCESS"}
    assert ORDER[0] == "a"
    assert ORDER[-1] == "d"
    assert sorted(ORDER) == ["a", "b", "c", "d"]


async def test_values_go_from_step_to_step_with_their_types(app: Keptwork) -> None:
    definition = flow(
        step("a", given={"n": 3, "list": ["x", {"y": True}]}),
        step("b", "a", given={"n": "${a.n}", "text": "n is ${a.n}", "y": "${a.list[1].y}", "who": "${inputs.who}"}),
        inputs={"who": {"default": "ann"}},
    )
    ref, store = await carried_out(app, definition)
    (output,) = await store.outputs(ref.id, ["b"])
    assert output.output is not None
    assert json.loads(output.output) == {"name": "b", "n": 3, "text": "n is 3", "y": True, "who": "ann"}


async def test_a_condition_that_is_not_met_skips_the_step_and_what_follows_goes_on(app: Keptwork) -> None:
    definition = flow(step("a"), step("b", "a", when="${a.name} == 'other'"), step("c", "b"))
    ref, store = await carried_out(app, definition)
    state, steps = await states(store, ref)
    assert state == "S_SUCCESS"
    assert steps == {"a": "S_SUCCESS", "b": "S_SKIPPED", "c": "S_SUCCESS"}


async def test_a_step_runs_once_for_each_element_of_a_list_and_its_results_are_a_list(app: Keptwork) -> None:
    definition = flow(
        step("a", given={"list": [1, 2, 3, 4, 5]}),
        step("b", "a", for_each={"items": "${a.list}", "limit": 2}, given={"item": "${item}"}),
        step("c", "b", given={"third": "${b.items[2].item}", "count": "${b.count}"}),
    )
    ref, store = await carried_out(app, definition)
    state, steps = await states(store, ref)
    assert state == "S_SUCCESS"
    assert len(steps) == 8
    (output,) = await store.outputs(ref.id, ["c"])
    assert json.loads(output.output or "") == {"name": "c", "third": 3, "count": 5}


async def test_a_step_is_retried_as_often_as_it_says(app: Keptwork) -> None:
    definition = flow(
        {
            "id": "a",
            "call": f"{__name__}:fail_at_first",
            "with": {"name": "a", "times": 2},
            "retries": 2,
            "backoff": "1ms",
        }
    )
    store = await app.open()
    ref = await flows.start(store, definition)
    task = asyncio.create_task(app.work())
    await _ended(store, ref)
    app.stop()
    await task
    state, _steps = await states(store, ref)
    (row,) = await store.steps(ref.id)
    assert state == "S_SUCCESS"
    assert row["retry_count"] == 2
    assert row["attempts"] == 3


async def _ended(store: Store, ref: flows.FlowRef) -> None:
    async with asyncio.timeout(60):
        while True:
            (row,) = await store.rows(ref.kind.flow, [ref.id], ("completed_at", "state"))
            if row["completed_at"] is not None:
                return
            await asyncio.sleep(0.02)


async def test_a_run_waits_for_an_approval_and_goes_on_with_it(app: Keptwork) -> None:
    definition = flow(step("a"), step("sign", approval={"by": "ops"}), step("b"), kind="run")
    ref, store = await carried_out(app, definition)
    state, steps = await states(store, ref)
    assert (state, steps) == ("WAITING_APPROVAL", {"a": "SUCCEEDED", "sign": "WAITING_APPROVAL", "b": "PENDING"})
    (question,) = await app.approvals()
    await app.approve(question.public_id, by="ann")
    await app.work(until_idle=True)
    state, steps = await states(store, ref)
    assert state == "SUCCEEDED"
    assert set(steps.values()) == {"SUCCEEDED"}


async def test_a_failed_step_fails_its_run_and_cancels_what_comes_after_it(app: Keptwork) -> None:
    definition = flow(
        {"id": "a", "call": f"{__name__}:fail_at_first", "with": {"name": "a", "times": 9}, "retries": 0},
        step("b"),
        kind="run",
    )
    ref, store = await carried_out(app, definition)
    state, steps = await states(store, ref)
    assert (state, steps) == ("FAILED", {"a": "FAILED", "b": "CANCELED"})


async def test_a_workstream_that_failed_runs_again_only_what_did_not_succeed(app: Keptwork) -> None:
    definition = flow(
        step("a"),
        {"id": "b", "call": f"{__name__}:fail_at_first", "with": {"name": "b", "times": 1}, "depends_on": ["a"]},
        step("c", "b"),
    )
    ref, store = await carried_out(app, definition)
    state, steps = await states(store, ref)
    assert (state, steps) == ("S_FAILED", {"a": "S_SUCCESS", "b": "S_FAILED", "c": "S_PENDING"})
    await flows.retry(store, ref, Actor("ann"))
    await app.work(until_idle=True)
    state, steps = await states(store, ref)
    assert state == "S_SUCCESS"
    assert ORDER == ["a", "c"]


async def test_a_flow_inside_a_flow_gives_its_results_to_the_step_it_is(app: Keptwork) -> None:
    inner = flow(step("x", given={"n": "${inputs.n}"}), inputs={"n": {"type": "integer"}})
    outer = flow(
        step("a", given={"n": 7}),
        step("sub", "a", flow="inner", **{"with": {"n": "${a.n}"}}),
        step("c", "sub", given={"n": "${sub.steps.x.n}"}),
    )
    store = await app.open()
    ref = await flows.start(store, outer, library={"inner": inner})
    await app.work(until_idle=True)
    state, _steps = await states(store, ref)
    assert state == "S_SUCCESS"
    (output,) = await store.outputs(ref.id, ["c"])
    assert json.loads(output.output or "")["n"] == 7


async def test_a_function_that_is_built_in_can_be_called(app: Keptwork) -> None:
    """Some do not tell their parameters, and were never called."""
    ref, store = await carried_out(app, flow(step("a", call="time:time")))
    assert (await states(store, ref))[0] == "S_SUCCESS"


async def test_a_flow_of_which_nothing_is_to_be_done_begins_and_ends(app: Keptwork) -> None:
    """It went from its first state to its last, which no move does, and could not be started at all."""
    store = await app.open()
    ref = await flows.start(store, flow(step("a", when="1 == 2"), step("b", "a", when="1 == 2")))
    assert await states(store, ref) == ("S_SUCCESS", {"a": "S_SKIPPED", "b": "S_SKIPPED"})


async def test_a_cancelled_flow_leaves_nothing_behind(app: Keptwork) -> None:
    definition = flow(
        step("a"), step("sign", "a", approval={}), step("b", "sign"), step("w", **{"call": "time:sleep", "with": {}})
    )
    store = await app.open()
    ref = await flows.start(store, flow(step("a"), step("b", "a")), hold=True)
    assert await store.unfinished_jobs(ref.id) == []
    await flows.let_go(store, ref, Actor("ann"))
    assert len(await store.unfinished_jobs(ref.id)) == 1
    await flows.cancel(store, ref, Actor("ann", "enough"))
    state, steps = await states(store, ref)
    assert state == "S_ABANDONED"
    assert set(steps.values()) == {"S_ABANDONED"}
    assert await store.unfinished_jobs(ref.id) == []
    assert definition.steps
    assert phases(ref.kind.step)["S_ABANDONED"] is Phase.GONE


async def test_the_job_of_a_step_is_not_run_again_without_its_step(app: Keptwork) -> None:
    definition = flow({"id": "a", "call": f"{__name__}:fail_at_first", "with": {"name": "a", "times": 9}})
    ref, store = await carried_out(app, definition)
    (row,) = await store.steps(ref.id)
    with pytest.raises(BelongsToStep, match="steps reset step_"):
        await queries.retry(store, 1, ids.public("job", row["job_id"]))


def test_no_job_may_be_called_as_those_of_steps_are() -> None:
    with pytest.raises(BadInput, match="keptwork"):
        Keptwork("sqlite:///:memory:").job(name="keptwork.call")(lambda ctx: None)


async def test_a_flow_runs_once_for_each_element_of_a_list(app: Keptwork) -> None:
    inner = flow(step("x", given={"n": "${inputs.n}"}), inputs={"n": {"type": "integer"}})
    each = step("each", flow="inner", for_each={"items": [1, 2, 3], "limit": 2}, **{"with": {"n": "${item}"}})
    store = await app.open()
    ref = await flows.start(
        store, flow(each, step("c", "each", given={"n": "${each.items[2].steps.x.n}"})), library={"inner": inner}
    )
    await app.work(until_idle=True)
    state, _ = await states(store, ref)
    (output,) = await store.outputs(ref.id, ["c"])
    assert (state, json.loads(output.output or "")["n"]) == ("S_SUCCESS", 3)


async def test_a_flow_inside_that_cannot_be_started_fails_its_step_and_says_why(app: Keptwork) -> None:
    inner = flow(step("x"), inputs={"n": {"type": "integer", "required": True}})
    sub = step("sub", "a", flow="inner", **{"with": {"n": "${a.name}"}})
    store = await app.open()
    ref = await flows.start(store, flow(step("a"), sub), library={"inner": inner})
    await app.work(until_idle=True)
    state, steps = await states(store, ref)
    assert (state, steps) == ("S_FAILED", {"a": "S_SUCCESS", "sub": "S_FAILED"})
    assert "should be of type integer" in str((await store.steps(ref.id, names=["sub"]))[0]["error"])


async def test_of_several_steps_one_of_which_cannot_begin_none_does(app: Keptwork) -> None:
    definition = flow(
        step("a"), step("b", "a"), step("bad", "a", when="${a.name} < 3"), step("c", "a"), abandon_after="1h"
    )
    ref, store = await carried_out(app, definition)
    state, steps = await states(store, ref)
    assert (state, ORDER) == ("S_FAILED", ["a"])
    assert steps == {"a": "S_SUCCESS", "b": "S_PENDING", "bad": "S_FAILED", "c": "S_PENDING"}
    assert await store.unfinished_jobs(ref.id) == []


async def test_a_failed_flow_inside_fails_the_one_around_it(app: Keptwork) -> None:
    inner = flow({"id": "x", "call": f"{__name__}:fail_at_first", "with": {"name": "x", "times": 9}})
    store = await app.open()
    ref = await flows.start(store, flow(step("sub", flow="inner"), step("b", "sub")), library={"inner": inner})
    await app.work(until_idle=True)
    state, steps = await states(store, ref)
    assert (state, steps) == ("S_FAILED", {"sub": "S_FAILED", "b": "S_PENDING"})


def dig(share: int, shares: int, task: str) -> str:
    ORDER.append(f"{task} {share}/{shares}")
    return f"hole {share}"


async def test_a_crew_works_on_a_step_and_its_shares_are_what_came_of_it(app: Keptwork) -> None:
    crew = {"task": "dig ${a.name}", "workers": 3, "call": f"{__name__}:dig"}
    definition = flow(
        step("a"), step("crew", "a", crew=crew), step("c", "crew", given={"second": "${crew.shares[1].value}"})
    )
    ref, store = await carried_out(app, definition)
    state, steps = await states(store, ref)
    assert state == "S_SUCCESS", await store.steps(ref.id)
    assert sorted(ORDER[1:4]) == ["dig a 0/3", "dig a 1/3", "dig a 2/3"]
    (output,) = await store.outputs(ref.id, ["c"])
    assert json.loads(output.output or "")["second"] == "hole 1"
    assert steps["crew"] == "S_SUCCESS"


async def test_a_failed_crew_fails_its_step_and_a_cancelled_flow_calls_its_crew_off(app: Keptwork) -> None:
    bad = flow(step("crew", crew={"task": "dig", "workers": 2, "call": f"{__name__}:nowhere"}))
    ref, store = await carried_out(app, bad)
    assert (await states(store, ref))[0] == "S_FAILED"
    later = await flows.start(store, flow(step("crew", crew={"task": "dig", "workers": 2})))
    (row,) = await store.steps(later.id)
    await flows.cancel(store, later, Actor("ann"))
    (crew,) = await store.crews_of_step(row["id"])
    assert (crew["state"], await store.unfinished_jobs(later.id)) == ("CANCELED", [])


async def test_a_flow_whose_next_steps_cannot_be_found_out_does_not_end_the_worker(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await app.open()
    broken = await flows.start(store, flow(step("a"), step("b", "a")))
    sound = advance.go_on

    async def goes_wrong(scene: Scene, ended: list[Row], companions: list[str]) -> None:
        if scene.id == broken.id:
            raise RuntimeError("out of order")
        await sound(scene, ended, companions)

    monkeypatch.setattr(advance, "go_on", goes_wrong)
    other = await flows.start(store, flow(step("a"), step("b", "a")))
    await app.work(until_idle=True)
    assert await reconciler.catch_up(store) == 0  # nor whoever looks for what was lost
    assert (await states(store, other))[0] == "S_SUCCESS"
    assert (await states(store, broken))[1] == {"a": "S_RUNNING", "b": "S_PENDING"}
    (row,) = await store.steps(broken.id, names=["a"])
    job = await store.get(JOB, row["job_id"], 1)
    assert job is not None
    assert (job["state"], json.loads(job["result"])) == ("succeeded", {"name": "a"})
    assert "out of order; see: keptwork doctor" in caplog.text


async def test_a_flow_inside_that_cannot_be_started_fails_its_step(app: Keptwork) -> None:
    """Its inputs do not fit, there is none of that name, or what it is given does not exist."""
    inner = flow(step("x"), inputs={"n": {"type": "integer", "required": True}})
    for given in ({"with": {"n": "${a.name}"}}, {"flow": "nobody"}, {"with": {"n": "${a.nothing}"}}):
        said = {"flow": "inner", **given}
        definition = flow(step("a"), step("sub", "a", **said), step("c", "sub"))
        store = await app.open()
        ref = await flows.start(store, definition, library={"inner": inner})
        await app.work(until_idle=True)
        state, steps = await states(store, ref)
        assert (state, steps) == ("S_FAILED", {"a": "S_SUCCESS", "sub": "S_FAILED", "c": "S_PENDING"})


async def test_a_flow_that_contains_itself_ends(app: Keptwork) -> None:
    store = await app.open()
    definition = flow(step("a"), step("sub", flow="test"))
    ref = await flows.start(store, definition)
    await app.work(until_idle=True)
    (row,) = await store.rows(ref.kind.flow, [ref.id])
    assert row["state"] == "S_FAILED"
    assert "does one contain itself?" in row["error"]


async def test_many_flows_inside_one_after_the_other_may_have_nothing_to_do(app: Keptwork) -> None:
    """Each ends at the moment it starts, and none of them is started from within the one before it."""
    inner = flow(step("x", when="false"))
    steps = [step(f"s{n}", *([f"s{n - 1}"] if n else []), flow="inner") for n in range(200)]
    ref, store = await carried_out_with(app, flow(*steps), {"inner": inner})
    state, found = await states(store, ref)
    assert state == "S_SUCCESS"
    assert set(found.values()) == {"S_SUCCESS"}


async def carried_out_with(app: Keptwork, definition: Flow, library: dict[str, Flow]) -> tuple[flows.FlowRef, Store]:
    store = await app.open()
    ref = await flows.start(store, definition, library=library)
    await app.work(until_idle=True)
    return ref, store


async def test_a_flow_of_which_every_step_is_skipped_has_succeeded(app: Keptwork) -> None:
    ref, store = await carried_out(app, flow(step("a", when="false"), step("b", "a", when="false")))
    assert await states(store, ref) == ("S_SUCCESS", {"a": "S_SKIPPED", "b": "S_SKIPPED"})


async def test_elements_after_a_skipped_one_all_run(app: Keptwork) -> None:
    """Skipping one in the middle neither runs it nor leaves out another."""
    store = await app.open()
    ref = await flows.start(store, flow(step("b", for_each={"items": [0, 1, 2, 3, 4], "limit": 1})))
    element = next(row for row in await store.steps(ref.id) if row["name"] == "b[3]")
    await flows.skip(store, element, Actor("ann"))
    await app.work(until_idle=True)
    state, steps = await states(store, ref)
    assert (state, steps.pop("b[3]"), set(steps.values())) == ("S_SUCCESS", "S_SKIPPED", {"S_SUCCESS"})


async def test_the_same_failure_told_again_after_a_new_round_began_changes_nothing(store: Store) -> None:
    """The answer was lost; by the time it is sent again, the step has been reset and has another job."""
    ref = await flows.start(store, flow(step("a")))
    (job,) = await store.claim(await worker(store), ["default"], 1, 60_000_000, claim_id=1, start=True)
    failure = outcome.settle(job, None, outcome.Raised(PermanentError("no")), lambda: 0.5, "w:1")
    assert await complete.applied(store, [failure]) == []
    await flows.retry(store, ref, Actor("ann"))
    before = await store.event_count()
    assert await complete.applied(store, [failure]) == []
    assert await store.event_count() == before
    assert await states(store, ref) == ("S_RUNNING", {"a": "S_PENDING"})


async def test_two_databases_may_give_one_key_to_two_definitions() -> None:
    """Their clocks stand still at one moment, so they do."""
    stores = [await open_store("sqlite:///:memory:", clock=ManualClock()) for _ in range(2)]
    try:
        for store, count in zip(stores, (1, 3), strict=True):
            ref = await flows.start(store, flow(*(step(f"s{n}") for n in range(count))))
            assert len(await store.steps(ref.id)) == count
    finally:
        for store in stores:
            await store.close()


async def test_a_flow_with_a_step_that_was_given_up_does_not_succeed_until_somebody_brings_that_back(
    app: Keptwork,
) -> None:
    store = await app.open()
    ref = await flows.start(store, flow(step("a"), step("b", "a"), abandon_after="1h"))

    async def put(id: str, state: str) -> None:
        await overrides.overridden(store, 1, id, state, reason="it was a mistake", actor="ann")

    await flows.cancel(store, ref, Actor("ann"))
    await put(ref.public_id, "S_FAILED")
    for name in "ab":
        await flows.retry(store, ref, Actor("ann"))
        await app.work(until_idle=True)
        (row,) = await store.rows(ref.kind.flow, [ref.id])
        assert row["state"] == "S_FAILED"
        assert row["error"] == f"{name}: it is S_ABANDONED, and nothing leads on from there"
        await put(f"{ref.public_id}/{name}", "S_PENDING")
    await flows.retry(store, ref, Actor("ann"))
    await app.work(until_idle=True)
    assert await states(store, ref) == ("S_SUCCESS", {"a": "S_SUCCESS", "b": "S_SUCCESS"})


async def test_a_worker_that_works_until_nothing_is_left_tries_flows_again_that_are_due(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to end before it had looked at the time, or when that had just brought a job."""
    monkeypatch.setattr(advance, "pause_us", lambda round: 0)
    failing = {"id": "a", "call": f"{__name__}:fail_at_first", "with": {"name": "late", "times": 2}}
    ref, store = await carried_out(app, flow(failing, step("b", "a"), max_retries=2))
    assert await states(store, ref) == ("S_SUCCESS", {"a": "S_SUCCESS", "b": "S_SUCCESS"})


async def test_a_run_whose_last_step_was_cancelled_by_hand_fails_where_it_would_have_succeeded(app: Keptwork) -> None:
    store = await app.open()
    ref = await flows.start(store, flow(step("a", approval={}), step("b"), kind="run"))
    await overrides.overridden(store, 1, f"{ref.public_id}/b", "CANCELED", reason="by mistake", actor="ann")
    (gate,) = await store.steps(ref.id, names=["a"])
    await flows.decide_gate(store, gate, "approved", by="ann")
    assert (await states(store, ref))[0] == "FAILED"


async def test_a_definition_that_was_not_kept_after_all_is_not_taken_for_the_next_one_under_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction that is undone gives its keys back; where the clock stands still, the next one gets the same."""

    async def launched(*_: Any, **__: Any) -> int:
        await launched_in_full(*_, **__)
        raise BadInput(what="too late")

    store, launched_in_full = await open_store("sqlite:///:memory:", clock=ManualClock()), create.launched
    monkeypatch.setattr(create, "launched", launched)
    with pytest.raises(BadInput, match="too late"):
        await flows.start(store, flow(step("a"), step("b")))
    monkeypatch.undo()
    ref = await flows.start(store, flow(step("c")))
    assert (await states(store, ref))[1] == {"c": "S_PENDING"}
    (job,) = await store.claim(await worker(store), ["default"], 1, 60_000_000, claim_id=1, start=True)
    assert json.loads(job.payload)["step"] == "c"
    await store.close()


def test_no_step_that_nobody_carries_out_runs_for_each_element() -> None:
    with pytest.raises(ValueError, match="for_each belongs to"):
        flow(step("a", approval={}, for_each={"items": [1]}))


async def test_while_a_function_is_imported_other_threads_may_open_databases(
    app: Keptwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's lease thread opens its own connection just then."""
    opened = """import asyncio, threading
from keptwork import Keptwork

found = []

async def look():
    async with Keptwork("sqlite:///:memory:") as app:
        await app.open()
        return "opened"

def elsewhere():
    try:
        found.append(asyncio.run(look()))
    except Exception as error:
        found.append(str(error))

thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()

"""
    (tmp_path / "opens_elsewhere.py").write_text(opened + "def told():\n    return found\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ref, store = await carried_out(app, flow({"id": "a", "call": "opens_elsewhere:told"}))
    (output,) = await store.outputs(ref.id, ["a"])
    assert json.loads(output.output or "") == {"value": ["opened"]}

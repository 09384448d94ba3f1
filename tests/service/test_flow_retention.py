"""Flows, crews and agent jobs that have ended go as retention says: whole, accounted for, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from keptwork.agents import budget_caps
from keptwork.agents import commands as agents
from keptwork.audit import verify
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import AGENT, CREW, JOB, LIFECYCLES, RUN, WORKSTREAM
from keptwork.diagnostics import diagnose
from keptwork.diagnostics.doctor import runner
from keptwork.errors import NotFound
from keptwork.flows import commands as flows
from keptwork.flows import forks, queries, report
from keptwork.flows.commands import FlowRef
from keptwork.flows.live_view import FlowView
from keptwork.flows.transaction import Actor
from keptwork.maintenance import reconciler, retention
from keptwork.maintenance.retention import ENDED_LIKE, FINISHED, Retention, Swept, prune, sweep
from keptwork.store import Blob, EventFilter, NewJob, Store, open_store
from keptwork.store.contract.agents_transcripts import NewLine
from keptwork.store.contract.budgets import Closing, NewBudget, NewCharge
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.records import Expiry
from tests.conformance.by_hand import Hand, hand_on
from tests.conformance.stage import moved
from tests.service.flow_driver import Driver, flow, states, step

EVERYTHING = Retention.of(finished=0, failures=0, keys=None)
HOOK = {"url": "https://example.com/hook"}

STAYS = {
    *("events", "retention", "ledger", "templates", "tenants", "counters", "log_positions", "duties", "agent_audits"),
    *("keptwork_migrations", "last_key", "sqlite_sequence", "workers"),
}
"""What is no part of a flow: the log and the accounts, definitions, settings, and the workers that are at work."""


@pytest.fixture
async def hand(store: Store, database_url: str) -> AsyncIterator[Hand]:
    opened = await hand_on(database_url)
    yield opened
    await opened.close()


async def left(hand: Hand, url: str) -> dict[str, int]:
    """How many rows each table has that may have something of a flow in it."""
    listing = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    if url.startswith("postgres"):
        listing = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    tables = {name for (name,) in await hand.run(listing)} - STAYS
    counts = {table: (await hand.run(f"SELECT count(*) FROM {table}"))[0][0] for table in sorted(tables)}
    return {table: count for table, count in counts.items() if count}


def everything(kind: str) -> list[dict[str, Any]]:
    """A step of every sort that there is in such a flow."""
    return [
        step("a"),
        *([] if kind == "run" else [step("each", "a", for_each={"items": [1, 2, 3], "limit": 2})]),
        step("sub", "a", flow="inner"),
        step("team", "a", crew={"task": "dig", "workers": 2, "call": "platform:node"}),
        step("ask", "a", approval={"by": "ops"}),
    ]


async def through(store: Store, *steps: dict[str, Any], failing: str = "", **more: Any) -> FlowRef:
    """A flow that was carried to its end."""
    how = {name: more.pop(name) for name in ("key", "webhook", "library") if name in more}
    ref = await flows.start(store, flow(*(steps or (step("a"), step("b", "a"))), **more), **how)
    await Driver(store).to_the_end(lambda name: bool(failing) and name == failing)
    return ref


async def an_agent(store: Store, **how: Any) -> agents.Started:
    """An agent job that came to its end, after two messages."""
    began, driver = await agents.start(store, agents.new_agent("say hello", **how)), Driver(store)
    for _ in range(3):
        await moved(store, AGENT, began.key, "success")
    (job,) = await driver.start()
    assert await store.say(job, [NewLine(0, place, Blob.of(said)) for place, said in enumerate((b"hello", b"yes"))])
    await driver.settle([job])
    assert (await agents.find(store, 1, began.id))["state"] == "COMPLETED"
    return began


async def told(store: Store) -> None:
    """What is to be told of flows is delivered."""
    for delivery in await store.take_deliveries(100, 1_000_000):
        await store.settle_delivery(delivery, "delivered")


async def problems(store: Store) -> list[str]:
    return [problem.what for problem in (await verify.verify(store)).problems]


# --- what goes


def test_every_end_there_is_has_a_time() -> None:
    for lifecycle, alike in ENDED_LIKE.items():
        assert set(alike) == {state for state in lifecycle.states if state.final}
    steps_and_breakers = {"run-step", "workstream-step", "breaker"}
    assert {one.name for one in ENDED_LIKE} | {"job", "worker"} | steps_and_breakers == set(LIFECYCLES)


@pytest.mark.parametrize("kind", ["workstream", "run"])
async def test_nothing_is_left_of_a_flow_with_steps_of_every_sort(
    store: Store, hand: Hand, database_url: str, kind: str
) -> None:
    library = {"inner": flow(step("x", for_each={"items": [1, 2]}), name="inner")}
    ref = await through(store, *everything(kind), kind=kind, library=library, webhook=HOOK)
    assert (await states(store, ref))[0] in ("S_SUCCESS", "SUCCEEDED")
    await store.make_budgets([NewBudget(1, ref.id, "flow", ref.public_id, None, 80, "config")])
    charge = await store.open_charge(NewCharge(1, 7, ref.id, "turn", "offline", "m", 100, 1))
    await store.close_charge(charge, Closing("settled", 70))
    (first,) = await store.steps(ref.id, names=["a"])
    assert {"crews", "steps", "approvals", "outbox", "budgets", "jobs"} <= set(await left(hand, database_url))
    assert (await sweep(store, EVERYTHING)).of(ref.kind.flow).total() == 0  # its end is still to be told
    await told(store)
    swept = await sweep(store, EVERYTHING)
    assert swept.of(ref.kind.flow).total() == swept.rows == 1
    assert await left(hand, database_url) == {}
    assert await problems(store) == []
    assert len(await store.events(limit=1_000)) > 50
    with pytest.raises(NotFound):
        await diagnose.explained(store, 1, ref.public_id)
    with pytest.raises(NotFound):
        await flows.found_step(store, public_id(ref.kind.step.name, first["id"]), 1)
    spent = await budget_caps.read(store, 1, "flow", 0)
    shown = [(line.name, line.id, line.cost.micros) for line in spent.lines]
    assert shown == [(f"deleted {kind}", ref.public_id, 70)]


async def test_large_outputs_go_with_their_flow_and_shared_ones_stay(
    store: Store, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "UNUSED_BLOBS_US", -1)
    old, blob, other = await through(store), Blob.of(b"mine"), Blob.of(b"ours")
    new = await through(store)
    for ref, output in ((old, blob), (old, other), (new, other)):
        await store.keep_blob(1, output)
        name = "a" if output is other else "b"
        await hand.run(f"UPDATE steps SET output_hash = '{output.hash}' WHERE flow_id = {ref.id} AND name = '{name}'")
    (row,) = await store.rows(WORKSTREAM, [old.id])
    before = dict.fromkeys((*FINISHED, "S_SUCCESS"), row["completed_at"] + 1)
    assert await store.prune(WORKSTREAM, [old.id, new.id], Expiry(before)) == 1
    assert (await sweep(store, Retention.of(None, None, None))).blobs == 1
    assert await store.blob(1, other.hash) == b"ours"


async def test_a_flow_is_kept_as_long_as_a_job_that_ended_like_it(store: Store) -> None:
    won = [await through(store), await through(store, kind="run")]
    lost = [await through(store, failing="a", max_retries=0), await through(store, failing="a", kind="run")]
    ended = [(await states(store, ref))[0] for ref in (*won, *lost)]
    assert ended == ["S_SUCCESS", "SUCCEEDED", "S_ABANDONED", "FAILED"]
    gone = await flows.start(store, flow(step("a"), kind="run"))
    await flows.cancel(store, gone, Actor("ann"))
    swept = await sweep(store, Retention.of(finished=0, failures="1d", keys=None))
    assert (dict(swept.runs), dict(swept.workstreams)) == ({"SUCCEEDED": 1, "CANCELED": 1}, {"S_SUCCESS": 1})
    swept = await sweep(store, Retention.of(finished=None, failures=0, keys=None))
    assert (dict(swept.runs), dict(swept.workstreams)) == ({"FAILED": 1}, {"S_ABANDONED": 1})
    assert (await sweep(store, EVERYTHING)).rows == 0
    assert await problems(store) == []


async def test_a_dry_run_counts_what_would_go_and_states_are_those_of_jobs(store: Store) -> None:
    await through(store)
    await through(store, failing="a", max_retries=0)
    await an_agent(store)
    would = await prune(store, 1, "0s", dry_run=True)
    assert (dict(would.workstreams), would.crews, would.agent_jobs.total()) == ({"S_SUCCESS": 1}, {}, 1)
    done = await prune(store, 1, "0s")
    assert done.by_table == would.by_table
    assert dict((await prune(store, 1, "0s", ("failed",))).workstreams) == {"S_ABANDONED": 1}
    assert await problems(store) == []


async def test_what_has_not_ended_or_is_too_young_stays(store: Store) -> None:
    refs = [await flows.start(store, flow(step("a"), step("b", "a"))) for _ in range(2)]
    driver = Driver(store)
    await driver.settle((await driver.start())[:1])
    await driver.settle(await driver.start(1))
    ended = await through(store, kind="run")
    assert (await sweep(store, Retention())).rows == 0
    assert len(await store.flows(WORKSTREAM, FlowFilter(1))) == len(refs)
    assert await store.rows(RUN, [ended.id])


async def test_the_key_of_a_flow_keeps_it_until_keys_may_go(store: Store) -> None:
    ref = await through(store, key="order-17")
    assert not (await sweep(store, EVERYTHING)).workstreams
    again = await flows.start(store, flow(step("a"), step("b", "a")), key="order-17")
    assert again == ref
    assert (await sweep(store, Retention.of(0, 0, 0))).workstreams
    assert await flows.start(store, flow(step("a"), step("b", "a")), key="order-17") != ref


# --- batches


async def test_flows_go_in_batches_of_bounded_size_and_each_as_a_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 7)
    monkeypatch.setattr(retention, "WHOLE_AT_ONCE", 2)
    for _ in range(5):
        await through(store)  # three rows each
    await through(store, step("each", for_each={"items": list(range(20))}))  # more than a batch holds
    batches: list[int] = []
    prunes = type(store).prune

    async def counted(self: Any, lifecycle: Any, ids: Any, expiry: Any) -> int:
        if lifecycle is WORKSTREAM:
            batches.append(len(ids))
        return await prunes(self, lifecycle, ids, expiry)

    monkeypatch.setattr(type(store), "prune", counted)
    assert (await sweep(store, EVERYTHING)).workstreams.total() == 6
    assert batches == [2, 2, 1, 1]
    assert await problems(store) == []


async def test_two_who_prune_at_once_account_for_each_flow_once(store: Store, database_url: str) -> None:
    for _ in range(12):
        await through(store)
    other = await open_store(database_url)
    done = await asyncio.gather(sweep(store, EVERYTHING), sweep(other, EVERYTHING))
    await other.close()
    assert all(isinstance(one, Swept) for one in done)
    accounts = {(one.entity, one.state): one.rows for one in await store.pruned()}
    assert (accounts["workstream", "S_SUCCESS"], accounts["workstream-step", "S_SUCCESS"]) == (12, 24)
    assert await problems(store) == []


# --- what the audit does not accept


ABSENT = "the row is gone, though retention deleted nothing {} that ended so late"


async def test_a_flow_or_step_deleted_by_hand_is_a_fault_and_a_pruned_one_is_not(store: Store, hand: Hand) -> None:
    pruned, by_hand = await through(store), await through(store)
    (row,) = await store.rows(WORKSTREAM, [pruned.id])
    assert await store.prune(WORKSTREAM, [pruned.id], Expiry({"S_SUCCESS": row["completed_at"] + 1})) == 1
    assert await problems(store) == []
    await hand.run(f"DELETE FROM workstreams WHERE id = {by_hand.id}")
    assert await problems(store) == [ABSENT.format("S_SUCCESS")]
    await hand.run(f"DELETE FROM steps WHERE flow_id = {by_hand.id}")
    assert await problems(store) == [ABSENT.format("S_SUCCESS")] * 3


async def test_a_flow_deleted_in_the_shadow_of_those_that_were_pruned_is_a_fault(store: Store, hand: Hand) -> None:
    first, *_ = [await through(store) for _ in range(3)]
    await hand.run(f"DELETE FROM workstreams WHERE id = {first.id}")
    await sweep(store, EVERYTHING)
    says = "3 rows that were S_SUCCESS are gone, retention deleted 2 (tenant 1)"
    assert await problems(store) == [says]


async def test_without_its_account_what_was_pruned_is_a_fault(store: Store, hand: Hand) -> None:
    """The twin of a retention that keeps no account."""
    await through(store, step("team", crew={"task": "dig", "call": "platform:node"}))
    await an_agent(store)
    await sweep(store, EVERYTHING)
    assert await problems(store) == []
    for missing, entity in enumerate(("workstream", "workstream-step", "crew", "agent"), 1):
        await hand.run(f"DELETE FROM retention WHERE entity = '{entity}'")
        assert len(await problems(store)) == missing


async def test_a_flow_with_a_step_that_a_hand_brought_back_stays_until_it_is_mended(store: Store, hand: Hand) -> None:
    ref = await through(store)
    back = "state = 'S_RUNNING', move = 'override', seq = seq + 1, reason = 'oops', completed_at = NULL"
    await hand.run(f"UPDATE steps SET {back} WHERE flow_id = {ref.id} AND name = 'b'")
    assert not (await sweep(store, EVERYTHING)).workstreams
    assert len(await store.steps(ref.id)) == 2
    assert await runner.examine(store)


# --- crews and agent jobs


async def test_an_agent_job_goes_with_its_conversation_and_its_record_stays(
    store: Store, hand: Hand, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "UNUSED_BLOBS_US", -1)
    began = await an_agent(store)
    assert len(await store.transcript(1, began.job_key)) == 2
    swept = await sweep(store, EVERYTHING)
    assert (swept.agent_jobs.total(), swept.jobs.total(), swept.blobs) == (1, 1, 2)
    assert await left(hand, database_url) == {}
    with pytest.raises(NotFound):
        await agents.find(store, 1, began.id)
    record = await agents.audit(store, 1, began.id)
    assert (record.agent_id, record.description) == (began.key, "say hello")
    assert await problems(store) == []


async def test_an_agent_job_with_a_key_stays_with_its_job(store: Store) -> None:
    began = await an_agent(store, key="order-17")
    assert (await sweep(store, EVERYTHING)).rows == 0
    assert await agents.start(store, agents.new_agent("say hello", key="order-17")) == began
    assert (await sweep(store, Retention.of(0, 0, 0))).agent_jobs.total() == 1


# --- flows whose jobs have gone


async def without_jobs(store: Store, *steps: dict[str, Any], **more: Any) -> FlowRef:
    """A flow that has failed, and waits for an operator while its jobs were pruned."""
    ref, driver = await flows.start(store, flow(*steps, **more)), Driver(store)
    for _ in steps:
        await driver.settle(await driver.start(), lambda name: name == "bad")
    assert (await states(store, ref))[0] == "S_FAILED"
    swept = await sweep(store, EVERYTHING)
    assert (swept.jobs.total(), swept.workstreams.total()) == (len(steps) - 1, 0)
    return ref


GRAPH = (step("a"), step("bad", "a"), step("c", "bad"))


async def test_everything_can_be_asked_about_a_flow_whose_jobs_are_gone(store: Store) -> None:
    ref = await without_jobs(store, *GRAPH)
    (row,) = await store.steps(ref.id, names=["bad"])
    assert await store.rows(JOB, [row["job_id"]]) == []
    told = await diagnose.explained(store, 1, ref.public_id)
    assert [reason.cause for reason in told.reasons] == ["flow_failed"]
    for name in ("a", "bad", "c"):
        (one,) = await store.steps(ref.id, names=[name])
        assert (await diagnose.explained(store, 1, public_id(ref.kind.step.name, one["id"]))).reasons
    assert [finding.check for finding in await runner.examine(store)] == ["blocked"]
    assert queries.story_json(await queries.story(store, ref))["state"] == "S_FAILED"
    view = FlowView(store, ref, 1)
    assert (await report.report(store, view)).word == "failed"
    assert await report.last_output(store, view) == []
    assert await reconciler.catch_up(store) == 0


async def test_a_flow_whose_jobs_are_gone_can_be_carried_on(store: Store) -> None:
    ann = Actor("ann")
    for way in ("retry", "reset", "skip", "fork"):
        ref = await without_jobs(store, *GRAPH)
        (row,) = await store.steps(ref.id, names=["bad"])
        if way == "retry":
            await flows.retry(store, ref, ann)
        elif way == "fork":
            ref = await forks.fork(store, ref, "bad", actor=ann)
        else:
            await (flows.reset if way == "reset" else flows.skip)(store, row, ann)
        await Driver(store).to_the_end()
        assert (await states(store, ref))[0] == "S_SUCCESS"
        await sweep(store, EVERYTHING)
    assert await problems(store) == []


# --- lineage


async def test_a_fork_outlives_what_it_was_forked_from_and_still_names_it(store: Store) -> None:
    old = await through(store, *GRAPH, failing="bad", max_retries=0)
    new = await forks.fork(store, old, "bad", actor=Actor("ann"))
    assert (await sweep(store, EVERYTHING)).workstreams.total() == 1
    assert queries.flow_json(new.kind, await flows.row_of(store, new))["forked_from"] == old.public_id
    assert len(await store.events(EventFilter(1, WORKSTREAM.name, old.id))) > 2
    assert {one.name for one in await store.outputs(new.id, ["a"])} == {"a"}
    await Driver(store).to_the_end()
    assert (await states(store, new))[0] == "S_SUCCESS"
    assert await runner.examine(store) == []


async def test_a_flow_that_went_while_somebody_looked_at_it_is_not_found(store: Store) -> None:
    ref = await through(store)
    await sweep(store, EVERYTHING)
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: forks.fork(store, ref, "a", actor=Actor("ann")),
        lambda: flows.retry(store, ref, Actor("ann")),
        lambda: queries.story(store, ref),
        lambda: forks.insist_on_kept_answers(store, ref, "a", lambda *_: None),
    ]
    for ask in asked:
        with pytest.raises(NotFound, match=ref.public_id):
            await ask()


async def test_a_job_that_outlives_its_flow_can_be_asked_about(store: Store, hand: Hand) -> None:
    ref = await through(store)
    (row,) = await store.steps(ref.id, names=["a"])
    assert await store.prune(WORKSTREAM, [ref.id], Expiry({"S_SUCCESS": 1 << 60})) == 1
    told = await diagnose.explained(store, 1, public_id(JOB.name, row["job_id"]))
    assert [reason.cause for reason in told.reasons] == ["ended"]
    assert await runner.examine(store) == []


async def test_what_was_never_a_flow_costs_a_sweep_nothing(store: Store) -> None:
    await store.enqueue([NewJob("noop")])
    assert (await sweep(store, EVERYTHING)).rows == 0
    await moved(store, AGENT, await store.create(AGENT, description="hello"), "failure")
    await moved(store, CREW, await store.create(CREW, task_description="dig"), "cancel")
    swept = await sweep(store, EVERYTHING)
    assert (swept.agent_jobs.total(), swept.crews.total(), swept.rows) == (1, 1, 2)

"""Retention of what goes as a whole: flows with their steps and crews with those inside them; and of agent jobs."""

from __future__ import annotations

from typing import Any

from keptwork.core.lifecycles import AGENT, CREW, JOB, RUN, RUN_STEP, WORKSTREAM, Lifecycle
from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.budgets import Closing, NewBudget, NewCharge
from keptwork.store.contract.flows_steps import NewGate
from keptwork.store.contract.outbox import NewDelivery
from keptwork.store.contract.queues import SCHEDULER
from keptwork.store.contract.records import Expiry
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import log, moved, queued, running, undone, worker
from tests.conformance.times import SECOND, SetClock

OURS = 1
DAY = 86_400 * SECOND
ENDS = ("SUCCEEDED", "FAILED", "CANCELED", "S_SUCCESS", "S_ABANDONED", "COMPLETED", "succeeded", "failed", "cancelled")
WAYS = {RUN: ("start", "succeed"), WORKSTREAM: ("start_execution", "all_steps_succeed")}


def anything(now: int, **more: Any) -> Expiry:
    """Everything that ended before now."""
    return Expiry(dict.fromkeys(ENDS, now), **more)


async def a_flow(
    store: Store, lifecycle: Lifecycle = RUN, *, steps: int = 2, ended: bool = True, **columns: Any
) -> int:
    """One with steps that were called off, ended or not."""
    flow = await store.create(lifecycle, **columns)
    for id in await steps_of(store, flow, steps):
        await moved(store, RUN_STEP, id, "cancel")
    for trigger in WAYS[lifecycle][: 2 if ended else 1]:
        await moved(store, lifecycle, flow, trigger)
    return flow


async def steps_of(store: Store, flow: int, number: int) -> list[int]:
    rows = [{"flow_id": flow, "name": f"s{place}", "position": place} for place in range(number)]
    return await store.create_many(RUN_STEP, rows) if rows else []


async def a_crew(store: Store, *triggers: str, **columns: Any) -> int:
    crew = await store.create(CREW, task_description="dig", **columns)
    for trigger in ("validate", "allocate_resources", *triggers):
        await moved(store, CREW, crew, trigger, parent_depth=columns.get("depth", 0) - 1)
    return crew


async def prunable(store: Store, lifecycle: Lifecycle, expiry: Expiry) -> list[int]:
    return [id for id, _ in (await store.prunable(lifecycle, expiry)).found]


async def there(store: Store, lifecycle: Lifecycle, *ids: int) -> list[int]:
    return sorted(row["id"] for row in await store.rows(lifecycle, ids))


@keeps(Reader.prunable, "Flows and crews inside others go with the outermost one")
@keeps(
    Reader.retinues,
    "Return how many rows each of these flows or crews has, itself included",
    "The count has all steps, flows, and crews inside",
)
@keeps(Writer.prune, "A flow or a crew is deleted with everything inside it or not at all")
async def test_a_flow_goes_with_its_steps_and_the_flows_and_crews_inside(timed: Store, clock: SetClock) -> None:
    outer = await a_flow(timed, steps=3)
    (around, *_) = [row["id"] for row in await timed.steps(outer)]
    inner = await a_flow(timed, WORKSTREAM, steps=1, step_id=around, tree_id=outer)
    (deeper,) = [row["id"] for row in await timed.steps(inner)]
    innermost = await a_flow(timed, steps=1, step_id=deeper, tree_id=outer)
    crew = await a_crew(timed, "success", step_id=around, tree_id=outer)
    share = await a_crew(timed, "success", parent_id=crew, depth=1, tree_id=outer)
    gate = await timed.open_gate(NewGate(around, OURS, "s0", "ship it?", "digest"))
    await timed.close_gate(OURS, around, "withdrawn")
    other = await a_flow(timed)
    await clock.advance(SECOND)
    expiry = anything(clock.now)
    assert (await prunable(timed, RUN, expiry), await prunable(timed, WORKSTREAM, expiry)) == ([outer, other], [])
    assert await prunable(timed, CREW, expiry) == []
    assert await timed.retinues(RUN, [outer, other]) == {outer: 3 + 3 + 2 + 2, other: 3}
    assert await timed.prune(RUN, [outer], expiry) == 1
    assert await there(timed, RUN, outer, innermost, other) == [other]
    assert await there(timed, WORKSTREAM, inner) == await there(timed, CREW, crew, share) == []
    assert [await timed.steps(flow) for flow in (outer, inner, innermost)] == [[], [], []]
    assert (await timed.approval(OURS, gate.id), len(await timed.steps(other))) == (None, 2)


@keeps(Writer.prune, "Delete those of these entities that retention still allows, and record that in the same write")
async def test_everything_that_goes_with_a_flow_is_accounted_for_and_its_events_stay(
    timed: Store, clock: SetClock
) -> None:
    flow = await a_flow(timed, steps=3)
    before = await log(timed)
    await clock.advance(SECOND)
    assert await timed.prune(RUN, [flow], anything(clock.now)) == 1
    assert [(one.entity, one.state, one.rows) for one in await timed.pruned()] == [
        ("run", "SUCCEEDED", 1),
        ("run-step", "CANCELED", 3),
    ]
    assert await log(timed) == before
    assert await timed.prune(RUN, [flow], anything(clock.now)) == 0


@keeps(Reader.retinues, "A flow or crew with an unfinished part is left out")
@keeps(Writer.prune, "A flow or a crew is deleted with everything inside it or not at all")
async def test_a_flow_of_which_something_has_not_ended_stays_whole(timed: Store, clock: SetClock) -> None:
    """No verb leads there: a hand has put the flow where it is."""
    step, inner, crew = [await a_flow(timed, steps=1) for _ in range(3)]
    await steps_of(timed, inner, 0)
    await timed.create_many(RUN_STEP, [{"flow_id": step, "name": "left", "position": 9}])
    ((around,), (also,)) = [[row["id"] for row in await timed.steps(flow)] for flow in (inner, crew)]
    await a_flow(timed, WORKSTREAM, ended=False, step_id=around, tree_id=inner)
    await a_crew(timed, step_id=also, tree_id=crew)
    await clock.advance(SECOND)
    assert await timed.retinues(RUN, [step, inner, crew]) == {}
    assert await timed.prune(RUN, [step, inner, crew], anything(clock.now)) == 0
    assert await there(timed, RUN, step, inner, crew) == [step, inner, crew]
    assert (len(await timed.steps(step)), await timed.pruned()) == (2, [])


@keeps(
    Reader.prunable,
    "A flow stays while a job works for it or a webhook delivery of it is pending",
    "Flows and crews stay while money is reserved for them",
)
async def test_a_flow_stays_while_something_of_it_is_under_way(timed: Store, clock: SetClock) -> None:
    busy, told, paid = [await a_flow(timed, steps=0) for _ in range(3)]
    (job,) = await timed.enqueue([NewJob("kind", tree_id=busy)])
    await timed.put_delivery(NewDelivery(OURS, RUN.name, told, 3, "run.succeeded", "https://example.com", "{}"))
    crew = await a_crew(timed, "success")
    await timed.make_budgets([NewBudget(OURS, owner, "flow", "it", None, 80, "config") for owner in (paid, crew)])
    calls = [NewCharge(OURS, job, owner, f"turn {owner}", "p", "m", 100, 1) for owner in (paid, crew)]
    charges = [await timed.open_charge(call) for call in calls]
    await clock.advance(SECOND)
    assert await prunable(timed, RUN, anything(clock.now)) == await prunable(timed, CREW, anything(clock.now)) == []
    assert await timed.prune(RUN, [busy, told, paid], anything(clock.now)) == 0
    await moved(timed, JOB, job, "cancel")
    (delivery,) = await timed.take_deliveries(10, SECOND)
    await timed.settle_delivery(delivery, "delivered")
    for charge in charges:
        await timed.close_charge(charge, Closing("settled", 70))
    assert await prunable(timed, RUN, anything(clock.now)) == [busy, told, paid]
    assert await prunable(timed, CREW, anything(clock.now)) == [crew]


@keeps(Writer.prune, "The ledger keeps what was spent")
async def test_the_budget_of_a_flow_goes_with_it_and_what_was_spent_stays(timed: Store, clock: SetClock) -> None:
    flow, other = await a_flow(timed), await a_flow(timed)
    owners = {flow: "flow", other: "flow", 0: "tenant"}
    await timed.make_budgets([NewBudget(OURS, owner, scope, "it", None, 80, "x") for owner, scope in owners.items()])
    charge = await timed.open_charge(NewCharge(OURS, 7, flow, "turn", "p", "m", 100, 1))
    await timed.close_charge(charge, Closing("settled", 70))
    await clock.advance(SECOND)
    assert await timed.prune(RUN, [flow], anything(clock.now)) == 1
    left = {one.budget.owner: one.budget.spent_micros for one in await timed.budgets(OURS)}
    assert left == {other: 0, 0: 70}
    kept = await timed.charge(charge)
    assert kept is not None
    assert (kept.tree_id, kept.cost_micros) == (flow, 70)


@keeps(Writer.prune, "It stays while another transaction works on it")
async def test_a_flow_that_somebody_is_at_work_on_is_left_to_a_later_sweep(
    timed: Store, clock: SetClock, database_url: str
) -> None:
    """On SQLite nobody else can be: there is one writer."""
    flow, other = await a_flow(timed), await a_flow(timed)
    await clock.advance(SECOND)
    if database_url.startswith("sqlite"):
        assert await timed.prune(RUN, [flow, other], anything(clock.now)) == 2
        return
    somebody = await open_store(database_url)
    async with somebody.transaction() as transaction:
        await transaction.lock_trees([flow])
        assert await timed.prune(RUN, [flow, other], anything(clock.now)) == 1
        assert await there(timed, RUN, flow, other) == [flow]
    await somebody.close()
    assert await timed.prune(RUN, [flow], anything(clock.now)) == 1


async def test_a_prune_of_a_flow_that_is_undone_has_deleted_nothing(timed: Store, clock: SetClock) -> None:
    flow = await a_flow(timed)
    await clock.advance(SECOND)
    async with undone(timed) as transaction:
        assert await transaction.prune(RUN, [flow], anything(clock.now)) == 1
    assert (await timed.pruned(), len(await timed.steps(flow))) == ([], 2)


async def test_states_tenants_and_keys_decide_about_flows_as_about_jobs(
    timed: Store, clock: SetClock, other_tenant: int
) -> None:
    run, stream = await a_flow(timed), await a_flow(timed, WORKSTREAM)
    theirs, keyed = await a_flow(timed, steps=0, tenant_id=other_tenant), await a_flow(timed, key="order-17")
    await clock.advance(SECOND)
    young = await a_flow(timed)
    early = anything(clock.now)
    await clock.advance(SECOND)
    assert await prunable(timed, RUN, early) == [run, theirs]
    assert await prunable(timed, RUN, early._replace(tenant_id=other_tenant)) == [theirs]
    assert await prunable(timed, RUN, early._replace(keyed_before=clock.now)) == [run, theirs, keyed]
    assert await prunable(timed, RUN, Expiry({"FAILED": clock.now})) == []
    assert await prunable(timed, RUN, anything(clock.now)) == [run, theirs, young]
    assert await prunable(timed, WORKSTREAM, anything(clock.now)) == [stream]
    assert await timed.prune(RUN, [run, theirs, keyed], anything(clock.now, tenant_id=other_tenant)) == 1


@keeps(Reader.prunable, "The key of a flow that a schedule started protects the flow for a day")
async def test_the_key_of_a_flow_that_a_schedule_started_holds_it_for_a_day(timed: Store, clock: SetClock) -> None:
    ours = await a_flow(timed, key="schedule:nightly:1", actor=SCHEDULER)
    somebodys = await a_flow(timed, key="schedule:nightly:2", actor="ann")
    await clock.advance(DAY - SECOND)
    assert await prunable(timed, RUN, anything(clock.now)) == []
    await clock.advance(2 * SECOND)
    assert await prunable(timed, RUN, anything(clock.now)) == [ours]
    assert await timed.prune(RUN, [ours, somebodys], anything(clock.now)) == 1


@keeps(
    Reader.prunable,
    "An agent job stays while its job must",
    "A crew stays while one of its shares must, or while the job that created it is unfinished",
)
async def test_a_crew_stays_while_a_share_of_it_must_or_its_asker_is_at_work(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (asker,) = await running(timed, owner)
    asked, crew = await a_crew(timed, "success", asker_id=asker), await a_crew(timed, "cancel")
    (share,) = await queued(timed, crew_id=crew, tree_id=crew)
    inside = await a_crew(timed, "cancel", parent_id=crew, depth=1, tree_id=crew)
    await clock.advance(SECOND)
    assert await prunable(timed, CREW, anything(clock.now)) == []
    await moved(timed, JOB, share, "cancel")
    await moved(timed, JOB, asker, "succeed", by="holder")
    await clock.advance(SECOND)
    others = Expiry({"COMPLETED": clock.now, "CANCELED": clock.now})
    assert await prunable(timed, CREW, others) == [asked]  # what is cancelled is kept, so the share must stay
    expiry = anything(clock.now)
    assert await prunable(timed, CREW, expiry) == [asked, crew]
    assert await timed.retinues(CREW, [asked, crew]) == {asked: 1, crew: 2}
    assert await timed.prune(CREW, [asked, crew, inside], expiry) == 2
    assert await there(timed, CREW, asked, crew, inside) == []
    assert [(one.state, one.rows) for one in await timed.pruned()] == [("CANCELED", 2), ("COMPLETED", 1)]
    assert await there(timed, JOB, share) == [share]


async def test_a_crew_whose_parent_or_step_is_gone_goes_by_itself(timed: Store, clock: SetClock) -> None:
    orphans = [await a_crew(timed, "success", parent_id=17, depth=1), await a_crew(timed, "success", step_id=17)]
    flow = await a_flow(timed, step_id=17, tree_id=16)
    await clock.advance(SECOND)
    assert await timed.prune(CREW, orphans, anything(clock.now)) == 2
    assert await timed.prune(RUN, [flow], anything(clock.now)) == 1


@keeps(Reader.prunable, "An agent job stays while its job must")
async def test_an_agent_job_stays_while_its_job_must(timed: Store, clock: SetClock) -> None:
    jobs = [*await queued(timed, 2), *await queued(timed, key="order-17")]
    unfinished, free, keyed = [await timed.create(AGENT, description="hello", job_id=job) for job in jobs]
    alone = await timed.create(AGENT, description="hello")
    for agent in (unfinished, free, keyed, alone):
        await moved(timed, AGENT, agent, "failure")
    for job in jobs[1:]:
        await moved(timed, JOB, job, "cancel")
    await clock.advance(SECOND)
    assert await prunable(timed, AGENT, Expiry({"FAILED": clock.now})) == [alone]
    expiry = anything(clock.now)
    assert await prunable(timed, AGENT, expiry) == [free, alone]
    assert await prunable(timed, AGENT, expiry._replace(keyed_before=clock.now)) == [free, keyed, alone]
    assert await timed.prune(AGENT, [unfinished, free, keyed, alone], expiry) == 2
    assert await there(timed, AGENT, unfinished, free, keyed, alone) == [unfinished, keyed]
    assert [(one.entity, one.state, one.rows) for one in await timed.pruned()] == [("agent", "FAILED", 2)]

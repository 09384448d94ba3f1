"""Money in the store: budgets and their sums, the ledger of calls, and the tokens that models take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keptwork.core.lifecycles import AGENT, JOB, RUN, RUN_STEP, WORKSTREAM, WORKSTREAM_STEP
from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.budgets import NO_COST, Bucket, Budget, Charge, Closing, NewBudget, NewCharge, Sum
from keptwork.store.contract.store import Reader, Transaction, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import moved, queued, undone
from tests.conformance.times import SetClock

OURS = 1
TODAY = 20_833
SCOPES = {7: "job", 5: "flow", 0: "tenant", TODAY: "day", TODAY - 1: "day"}


def budget(owner: int, cap: int | None = None, tenant_id: int = OURS) -> NewBudget:
    return NewBudget(tenant_id, owner, SCOPES[owner], f"subject-{owner}", cap, 80, "config")


def call(name: str = "turn 1", job: int = 7, ceiling: int = 100, **rest: Any) -> NewCharge:
    given = {"tree_id": 5, "day": TODAY, "tenant_id": OURS, "provider": "p", "model": "m", **rest}
    return NewCharge(job_id=job, call=name, ceiling_micros=ceiling, **given)


async def four(store: Store) -> None:
    await store.make_budgets([budget(owner, 1000) for owner in (0, 5, 7, TODAY)])


async def sums(store: Store, tenant_id: int = OURS) -> dict[int, tuple[int, int]]:
    found = [one.budget for one in await store.budgets(tenant_id)]
    return {one.owner: (one.reserved_micros, one.spent_micros) for one in found}


async def entered(store: Store, id: int) -> Charge:
    found = await store.charge(id)
    assert found is not None
    return found


@keeps(Writer.make_budgets, "Create those of these budgets that do not exist yet, and leave the others unchanged")
async def test_a_budget_is_made_once(timed: Store, clock: SetClock, other_tenant: int) -> None:
    await timed.make_budgets([budget(7, 500)])
    await timed.make_budgets([budget(7, 900), budget(0), budget(7, 900, other_tenant)])
    (first, second) = [one.budget for one in await timed.budgets(OURS)]
    assert first[:7] == (OURS, 0, "tenant", "subject-0", None, 80, "config")
    assert second[:7] == (OURS, 7, "job", "subject-7", 500, 80, "config")
    assert second[7:] == (0, 0, None, 0, None, None, clock.now, clock.now)
    assert (await timed.budgets(other_tenant))[0].budget.cap_micros == 900


@keeps(
    Reader.budgets,
    "Return at most `limit` budgets of a tenant, each with the number of queued jobs it holds",
    "The tenant's own comes first, then those of days, then all others, newest first",
    "They have one scope or any, and come after the budget with the given scope and owner",
)
@keeps(
    Reader.budget,
    "Return a budget by its owner, with the number of queued jobs it holds",
    "Return None if the tenant has no such budget",
)
async def test_budgets_are_listed_with_what_they_hold(store: Store, other_tenant: int) -> None:
    await store.make_budgets([budget(owner) for owner in SCOPES])
    await store.make_budgets([budget(5, None, other_tenant)])
    await queued(store, 2, held_by="budget:job:subject-7")
    await queued(store, 3, held_by="budget:job:subject-7", tenant_id=other_tenant)
    ended, *_ = await queued(store, held_by="budget:job:subject-7")
    await moved(store, JOB, ended, "cancel")
    found = await store.budgets(OURS)
    assert [(one.budget.owner, one.held) for one in found] == [(0, 0), (TODAY, 0), (TODAY - 1, 0), (7, 2), (5, 0)]
    assert await store.budget(OURS, 7) == found[3]
    assert await store.budget(other_tenant, 7) is None
    assert [one.budget.owner for one in await store.budgets(OURS, scope="day")] == [TODAY, TODAY - 1]
    assert len(await store.budgets(OURS, limit=2)) == 2
    pages = [await store.budgets(OURS, after=(one.budget.scope, one.budget.owner)) for one in found]
    assert pages == [found[place:] for place in range(1, len(found) + 1)]


@keeps(
    Writer.lock_budgets,
    "In a transaction, lock these budgets against changes until it ends",
    "Budgets that do not exist are left out",
)
async def test_a_locked_budget_is_nobody_elses_to_change(store: Store, database_url: str) -> None:
    await four(store)
    other, locked = await open_store(database_url, migrate=False), asyncio.Event()
    seen: list[Any] = []

    async def read_then_reserve() -> None:
        async with store.transaction() as tx:
            before = await tx.lock_budgets(OURS, [0, 7, 99])
            seen.append([one.owner for one in before])
            locked.set()
            await asyncio.sleep(0.05)
            await tx.open_charge(call())

    async def look_meanwhile() -> None:
        await locked.wait()
        (after,) = await other.atomically(lambda tx: tx.lock_budgets(OURS, [0]))
        seen.append(after.reserved_micros)

    await asyncio.gather(read_then_reserve(), look_meanwhile())
    await other.close()
    assert seen == [[7, 0], 100]


@keeps(
    Writer.keep_budget,
    "Store the cap and the notes of a budget",
    "Its sums stay unchanged, since only calls change them",
)
async def test_what_is_kept_of_a_budget_leaves_its_sums_alone(store: Store) -> None:
    await four(store)
    stale = (await store.budgets(OURS, scope="job"))[0].budget
    await store.open_charge(call())
    noted = {"warned_at": 3, "wanted_micros": 4, "promised_micros": 5, "let_go_at": 6}
    changed: dict[str, Any] = {"cap_micros": None, "said_by": "ann", "warn_percent": 50, **noted}
    await store.keep_budget(stale._replace(**changed))
    kept = (await store.budgets(OURS, scope="job"))[0].budget
    assert (kept.cap_micros, kept.said_by, kept.warn_percent) == (None, "ann", 50)
    assert {name: getattr(kept, name) for name in noted} == noted
    assert (kept.reserved_micros, kept.spent_micros) == (100, 0)


@keeps(
    Writer.forget_budgets,
    "Delete at most `limit` budgets of days and of deleted jobs, oldest first",
    "They were created before `older_than`",
    "Return their number",
    "A budget with a reservation stays",
)
async def test_old_budgets_are_dropped(timed: Store, clock: SetClock) -> None:
    alive, gone = (await queued(timed))[0], 7
    await timed.make_budgets([budget(owner) for owner in SCOPES])
    await timed.make_budgets([budget(gone)._replace(owner=alive)])
    id = await timed.open_charge(call(tree_id=None))
    await clock.advance(5)
    await timed.make_budgets([budget(gone)._replace(owner=8)])
    assert await timed.forget_budgets(clock.now - 5) == 0
    assert await timed.forget_budgets(clock.now) == 1
    await timed.close_charge(id, Closing("released"))
    assert await timed.forget_budgets(clock.now, 1) == 1
    assert await timed.forget_budgets(clock.now) == 1
    assert {one.budget.owner for one in await timed.budgets(OURS)} == {0, 5, 8, alive}


@keeps(
    Writer.open_charge,
    "Record a call in the ledger and reserve its ceiling in its budgets",
    "Return its ID",
    "If the job already has a call in flight with this name, return the ID of that call",
)
@keeps(Reader.charge, "Return a call in the ledger by its ID")
async def test_a_call_is_entered_once_while_it_is_under_way(timed: Store, clock: SetClock, other_tenant: int) -> None:
    await four(timed)
    await timed.make_budgets([budget(7, 1, other_tenant), budget(TODAY - 1)])
    id = await timed.open_charge(call(epoch=2, agent_id=9, taken=33))
    assert await timed.open_charge(call(ceiling=900)) == id
    assert await sums(timed) == {0: (100, 0), 5: (100, 0), 7: (100, 0), TODAY: (100, 0), TODAY - 1: (0, 0)}
    assert await sums(timed, other_tenant) == {7: (0, 0)}
    found = await entered(timed, id)
    assert found[1:9] == (OURS, 7, 5, 9, 2, "turn 1", "p", "m")
    assert found[9:] == ("open", None, 100, 0, 33, 0, 0, 0, 0, TODAY, clock.now, None)
    assert await timed.open_charge(call("turn 2")) != id
    await timed.close_charge(id, Closing("released"))
    assert await timed.open_charge(call()) != id
    assert await timed.charge(1) is None


@keeps(
    Writer.close_charge,
    "Record the outcome of a call that is in flight",
    "Its ceiling is no longer reserved, and its cost is spent",
    "Return the call and its budgets as they are then",
    "Return None if the call was already settled or released",
    "In that case, nothing changes",
)
async def test_a_call_is_closed_once(timed: Store, clock: SetClock) -> None:
    await four(timed)
    id = await timed.open_charge(call())
    await clock.advance(5)
    closed = await timed.close_charge(id, Closing("settled", 40, "answered", 1, 2, 3, 4))
    assert closed is not None
    charge, budgets = closed
    assert charge == await entered(timed, id)
    assert budgets == sorted((one.budget for one in await timed.budgets(OURS)), key=lambda one: -one.owner)
    assert charge[9:18] == ("settled", "answered", 100, 40, 0, 1, 2, 3, 4)
    assert charge.ended_at == clock.now
    other = await timed.open_charge(call("turn 2"))
    await timed.close_charge(other, Closing("released", ended_at=clock.now - 1))
    assert (await entered(timed, other)).ended_at == clock.now - 1
    assert await timed.close_charge(id, Closing("lost", 100)) is None
    assert await timed.close_charge(12345, Closing("lost", 100)) is None
    assert await sums(timed) == dict.fromkeys((0, 5, 7, TODAY), (0, 40))
    assert await entered(timed, id) == charge


@keeps(
    Writer.close_charge,
    "A lost call can be corrected once",
    "Its outcome then replaces the ceiling that was spent for it",
    "The totals of its agent job are updated",
)
async def test_lost_call_is_corrected_once_by_its_late_outcome(store: Store) -> None:
    await four(store)
    key = await store.create(AGENT, description="d", job_id=7)

    async def totals() -> tuple[int, int, int]:
        (row,) = await store.rows(AGENT, [key])
        return row["calls"], row["cost_micros"], row["output_tokens"]

    first, second = await store.open_charge(call()), await store.open_charge(call("turn 2"))
    assert await totals() == (0, 0, 0)
    for id in (first, second):
        assert await store.close_charge(id, Closing("lost", 100)) is not None
    assert await store.close_charge(first, Closing("lost", 100)) is None
    assert (await totals(), (await sums(store))[0]) == ((2, 200, 0), (0, 200))
    corrected = await store.close_charge(first, Closing("settled", 40, "answered", 1, 2))
    assert corrected is not None
    assert (corrected.charge.state, corrected.charge.cost_micros) == ("settled", 40)
    assert (await totals(), await sums(store)) == ((2, 140, 2), dict.fromkeys((0, 5, 7, TODAY), (0, 140)))
    assert await store.close_charge(first, Closing("settled", 1)) is None
    assert await store.close_charge(second, Closing("released")) is not None
    assert (await totals(), (await sums(store))[0]) == ((1, 40, 2), (0, 40))


@keeps(Writer.close_charge, "In a transaction, its job cannot end before the transaction does")
@keeps(
    Writer.lock_jobs,
    "Lock jobs until the transaction ends, so that no other session changes them",
    "Return the epoch of each job that exists, and when it ended",
)
@pytest.mark.parametrize("held", ["lock_jobs", "close_charge"])
async def test_job_does_not_end_under_a_transaction_that_has_it(store: Store, held: str) -> None:
    await four(store)
    (job,) = await queued(store)
    id = await store.open_charge(call(job=job))
    async with store.transaction() as tx:
        await (tx.lock_jobs([job]) if held == "lock_jobs" else tx.close_charge(id, Closing("settled", 40)))
        cancelling = asyncio.create_task(moved(store, JOB, job, "cancel"))
        assert not (await asyncio.wait([cancelling], timeout=0.2))[0]
        assert await tx.lock_jobs([job, 12345]) == {job: (0, None)}
    await cancelling
    (row,) = await store.rows(JOB, [job])
    assert await store.lock_jobs([job]) == {job: (row["epoch"], row["completed_at"])}


@keeps(Reader.charges_in_flight, "Return the calls of these jobs that are in flight")
@keeps(
    Reader.uncertain,
    "Return what counts against a budget although its cost is unknown",
    "The states are calls in flight and lost calls",
)
async def test_uncertain_calls_are_added_up_for_each_budget(store: Store) -> None:
    await four(store)
    flying, lost = await store.open_charge(call()), await store.open_charge(call("turn 2"))
    settled = await store.open_charge(call("turn 3"))
    await store.close_charge(lost, Closing("lost", 100))
    await store.close_charge(settled, Closing("settled", 1))
    other = await store.open_charge(call(job=8, tree_id=6))
    assert [one.id for one in await store.charges_in_flight([7])] == [flying]
    assert [one.id for one in await store.charges_in_flight([7, 8])] == [flying, other]
    assert await store.charges_in_flight([]) == []
    found = {view.budget.scope: await store.uncertain(view.budget) for view in await store.budgets(OURS)}
    one, two = {"open": Sum(1, 100, 0), "lost": Sum(1, 100, 100)}, {"open": Sum(2, 200, 0), "lost": Sum(1, 100, 100)}
    assert found == {"job": one, "flow": one, "tenant": two, "day": two}


@keeps(
    Reader.step_costs,
    "Return the cost of the calls for each step of a flow, by step",
    "Calls for flows inside a step count for that step, and calls for an item of a list also count for the list",
    "Lost calls count as spent and are also shown separately, and released calls are left out",
)
@keeps(Reader.tree_cost, "Return the cost of all calls for an outermost flow")
async def test_costs_of_steps_include_the_flows_inside_them(store: Store) -> None:
    outer = await store.create(WORKSTREAM, name="outer")
    (leaf, nest) = await store.create_many(WORKSTREAM_STEP, [{"flow_id": outer, "name": n} for n in ("leaf", "nest")])
    inner = await store.create(RUN, name="inner", tree_id=outer, step_id=nest)
    (deep,) = await store.create_many(RUN_STEP, [{"flow_id": inner, "name": "deep"}])
    (item,) = await store.create_many(WORKSTREAM_STEP, [{"flow_id": outer, "name": "leaf[0]", "parent_id": leaf}])
    made = await store.enqueue([NewJob("kind", step_id=step, tree_id=outer) for step in (item, deep)])
    closings = Closing("settled", 40), Closing("lost", 100), Closing("released"), None
    for job in made:
        for number, closing in enumerate(closings):
            id = await store.open_charge(call(f"turn {number}", job=job, tree_id=outer))
            if closing is not None:
                await store.close_charge(id, closing)
    one = (3, 1, 140, 100, 100, 0, 0, 0, 0)
    assert {step: cost[1:] for step, cost in (await store.step_costs(outer, outer)).items()} == {
        leaf: one,
        item: one,
        nest: one,
    }
    assert {step: cost[1:] for step, cost in (await store.step_costs(inner, outer)).items()} == {deep: one}
    assert (await store.tree_cost(OURS, outer))[1:] == (6, 2, 280, 200, 200, 0, 0, 0, 0)
    assert await store.tree_cost(OURS, 12345) == NO_COST


async def test_money_is_spent_with_the_transaction_it_belongs_to(store: Store) -> None:
    await four(store)
    id = await store.open_charge(call())
    async with undone(store) as tx:
        await tx.close_charge(id, Closing("settled", 40))
    assert (await entered(store, id)).state == "open"
    assert (await sums(store))[0] == (100, 0)


@keeps(Reader.open_charges, "Return the calls of a job that are in flight, or only the one with this name")
@keeps(
    Reader.charges,
    "Return at most `limit` calls of a tenant, newest first",
    "They belong to one job, one tree of flows, one day, or all of these, in one state or in any",
)
async def test_calls_are_listed(store: Store, other_tenant: int) -> None:
    first, second = await store.open_charge(call("a")), await store.open_charge(call("b"))
    third = await store.open_charge(call("a", job=8))
    foreign = await store.open_charge(call("a", job=9, tenant_id=other_tenant))
    await store.close_charge(second, Closing("settled", 1))
    assert [one.id for one in await store.charges(OURS)] == [third, second, first]
    assert [one.id for one in await store.charges(OURS, job=7)] == [second, first]
    assert [one.id for one in await store.charges(OURS, state="settled")] == [second]
    assert [one.id for one in await store.charges(OURS, tree=5)] == [third, second, first]
    assert await store.charges(OURS, tree=6) == await store.charges(OURS, day=TODAY + 1) == []
    assert [one.id for one in await store.charges(OURS, day=TODAY, state="settled")] == [second]
    assert [one.id for one in await store.charges(OURS, limit=1)] == [third]
    assert [one.id for one in await store.charges(other_tenant)] == [foreign]
    assert [one.id for one in await store.open_charges(7)] == [first]
    assert [one.id for one in await store.open_charges(8, "a")] == [third]
    assert await store.open_charges(8, "b") == []


@keeps(
    Reader.abandoned_charges,
    "Return at most `limit` calls recorded as in flight whose job has ended or was deleted",
)
async def test_calls_of_jobs_that_have_ended_are_found(store: Store) -> None:
    alive, ended = await queued(store, 2)
    made = [await store.open_charge(call(job=job)) for job in (alive, ended, 7)]
    closed = await store.open_charge(call("b", job=ended))
    await store.close_charge(closed, Closing("released"))
    await moved(store, JOB, ended, "cancel")
    assert [one.id for one in await store.abandoned_charges(9)] == sorted(made[1:])
    assert len(await store.abandoned_charges(1)) == 1


@keeps(
    Reader.costs,
    "Return the cost of calls that started since then, highest first",
    "They are grouped by `model`, `tenant`, `flow`, or `day`, for one tenant or for all",
    "Lost calls count as spent and are also shown separately, and released calls are left out",
)
async def test_costs_are_added_up(timed: Store, clock: SetClock, other_tenant: int) -> None:
    async def spent(closing: Closing | None, number: int, **rest: Any) -> None:
        id = await timed.open_charge(call(f"c{number}", **rest))
        if closing is not None:
            await timed.close_charge(id, closing)

    await spent(Closing("settled", 1000), 0)
    await clock.advance(10)
    since = clock.now
    await spent(Closing("settled", 10, None, 1, 2, 3, 4), 1)
    await spent(Closing("lost", 100), 2, tree_id=6)
    await spent(Closing("released"), 3, model="n")
    await spent(None, 4, model="o", ceiling=70)
    await spent(Closing("settled", 5), 5, tenant_id=other_tenant, day=TODAY - 1, tree_id=None)
    by_model = await timed.costs("model", OURS, since)
    assert [tuple(cost) for cost in by_model] == [
        ("p/m", 2, 1, 110, 100, 0, 1, 2, 3, 4),
        ("p/o", 1, 0, 0, 0, 70, 0, 0, 0, 0),
    ]
    assert [cost[:4] for cost in await timed.costs("flow", OURS, since)] == [("6", 1, 1, 100), ("5", 2, 0, 10)]
    assert [cost[:4] for cost in await timed.costs("tenant", None)] == [("1", 4, 1, 1110), ("2", 1, 0, 5)]
    days = [(str(TODAY), 4, 1, 1110), (str(TODAY - 1), 1, 0, 5)]
    assert [cost[:4] for cost in await timed.costs("day", None)] == days
    assert len(await timed.costs("day", None, limit=1)) == 1


@keeps(
    Reader.next_hold,
    "Return the next (tenant, hold) of queued jobs after the given pair, without limits",
    "Return None after the last pair",
    "Reading on from each pair returns every pair once",
)
async def test_what_holds_jobs_back_is_found_name_by_name(store: Store, other_tenant: int) -> None:
    await queued(store, 3, held_by="budget:tenant:total")
    await queued(store, 1, held_by="budget:tenant:total", tenant_id=other_tenant)
    await queued(store, 1, held_by="breaker:api")
    await queued(store, 1, held_by="limit", limit_key="*:kind")
    ended, *_ = await queued(store, held_by="quota")
    await moved(store, JOB, ended, "cancel")
    found, after = [], (0, "")
    while (one := await store.next_hold(after)) is not None:
        found.append(one)
        after = one
    assert found == [(1, "breaker:api"), (1, "budget:tenant:total"), (other_tenant, "budget:tenant:total")]


@keeps(
    Reader.bucket, "Return the tokens that all workers have requested from a model, or None if they were never counted"
)
@keeps(
    Writer.lock_bucket,
    "In a transaction, lock the token bucket of a model against changes until the transaction ends",
    "Create the bucket on its first use",
)
@keeps(Writer.keep_bucket, "Store the state of a model's token bucket")
async def test_the_tokens_of_a_model_are_counted_by_one_at_a_time(store: Store, database_url: str) -> None:
    assert await store.bucket("p", "m") is None
    assert await store.lock_bucket("p", "m") == Bucket("p", "m") == await store.bucket("p", "m")
    other = await open_store(database_url, migrate=False)

    async def one_more(tx: Transaction) -> None:
        bucket = await tx.lock_bucket("p", "m")
        await tx.keep_bucket(bucket._replace(empty_at=bucket.empty_at + 1))

    await asyncio.gather(*(one.atomically(one_more) for one in (store, other) * 10))
    await other.close()
    assert await store.bucket("p", "m") == Bucket("p", "m", 20)
    full = Bucket("p", "m", 1, 2, 3)
    await store.keep_bucket(full)
    assert await store.bucket("p", "m") == full
    assert await store.bucket("p", "n") is None


def test_a_budget_says_what_is_left() -> None:
    made = Budget(1, 0, "tenant", "total", 10, 80, "config", 3, 4, None, 0, None, None, 0, 0)
    assert (made.left_micros, made._replace(cap_micros=None).left_micros) == (3, None)
    assert made.hold == "budget:tenant:total"

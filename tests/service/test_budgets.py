"""Budgets: what is reserved, spent, released and lost, what holds jobs back, and what lets them go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents import budget_caps, budgets
from keptwork.agents.budgets import Refused, Reserved
from keptwork.agents.conversation import Usage
from keptwork.core.ids import public_id, resolve
from keptwork.core.lifecycles import JOB, RUN
from keptwork.core.money import DAY_US, Caps, day_name, day_of, midnight_after
from keptwork.diagnostics.why_jobs import why
from keptwork.errors import BadInput, LeaseLost, NotFound
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.job import DeclaredJob
from keptwork.jobs.outcome import Release
from keptwork.maintenance.held_job_release import BudgetWatch
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store
from keptwork.store.contract.budgets import Budget
from keptwork.store.contract.records import Job
from keptwork.workers.parked_waits import Suspended
from tests.conformance.stage import queued
from tests.service.spender import ask, refused, released, reserved, settled
from tests.support.broken_sql import leave_out
from tests.support.database_time import Timed, open_timed

MINUTE = 60_000_000


@pytest.fixture
def store(timed: Timed) -> Store:
    return timed.store


async def budget(store: Store, name: str = "tenant") -> Budget:
    return (await budget_caps.find(store, 1, name)).budget


async def one_job(store: Store, **fields: Any) -> int:
    return (await queued(store, **fields))[0]


# --- the four budgets


async def test_a_call_counts_against_job_flow_tenant_and_day(store: Store) -> None:
    job = await one_job(store)
    flow = await store.create(RUN, name="f")
    call = await reserved(store, job, 100, flow_tree=flow, caps=Caps(1000, 2000, 3000, 4000))
    found = {view.budget.scope: view.budget for view in await store.budgets(1)}
    assert {scope: one.cap_micros for scope, one in found.items()} == {
        "job": 1000,
        "flow": 2000,
        "tenant": 3000,
        "day": 4000,
    }
    assert {one.reserved_micros for one in found.values()} == {100}
    assert found["job"].subject == public_id("job", job)
    assert found["flow"].subject == public_id("run", flow)
    assert found["day"].subject == day_name(day_of(await store.now()))
    await settled(store, call.id, 40, Usage(1, 2, 3, 4))
    found = {view.budget.scope: view.budget for view in await store.budgets(1)}
    assert {(one.reserved_micros, one.spent_micros) for one in found.values()} == {(0, 40)}
    (charge,) = await store.charges(1)
    assert (charge.state, charge.outcome, charge.cost_micros) == ("settled", "answered", 40)
    assert charge[14:18] == (1, 2, 3, 4)


async def test_each_cap_refuses_what_does_not_fit(store: Store) -> None:
    for tenant, scope in enumerate(("job", "flow", "tenant", "day"), 1):
        await check_cap(store, tenant, scope)


async def check_cap(store: Store, tenant: int, scope: str) -> None:
    job = await one_job(store)
    flow = await store.create(RUN, name="f")
    asked: dict[str, Any] = {"flow_tree": flow, "caps": Caps(**{scope: 250}), "tenant_id": tenant}
    calls = [await reserved(store, job, 100, **asked) for _ in range(2)]
    no = await refused(store, job, 100, **asked)
    held_by = {view.budget.scope: view.budget.hold for view in await store.budgets(tenant)}
    assert no.hold == held_by[scope]
    assert "$0.00 of $0.00025 spent and $0.0002 reserved, and the next call may cost $0.0001" in no.reason
    midnight = midnight_after(day_of(await store.now()))
    assert no.until_us == (midnight if scope == "day" else None)
    assert {view.budget.reserved_micros for view in await store.budgets(tenant)} == {200}
    await settled(store, calls[0].id, 0)
    await reserved(store, job, 100, **asked)


async def test_other_jobs_flows_and_tenants_have_budgets_of_their_own(store: Store) -> None:
    first, second = await queued(store, 2)
    await reserved(store, first, 100, caps=Caps(job=100))
    await reserved(store, second, 100, caps=Caps(job=100))
    await reserved(store, second, 100, caps=Caps(tenant=100), tenant_id=2, call="of another tenant")
    assert (await refused(store, first, 1, caps=Caps(job=100))).hold == f"budget:job:{public_id('job', first)}"


async def test_a_call_is_counted_for_the_day_on_which_it_was_reserved(timed: Timed) -> None:
    store, job = timed.store, await one_job(timed.store)
    today = day_name(day_of(await store.now()))
    call = await reserved(store, job)
    await timed.advance(DAY_US)
    await reserved(store, job)
    await settled(store, call.id, 40)
    assert (await budget(store, today))[7:9] == (40, 0)
    assert (await budget(store, "today"))[7:9] == (0, 100)


async def test_a_flow_has_the_cap_that_its_file_gives_it(store: Store) -> None:
    definition = {"name": "f", "kind": "run", "budget_usd": 1.5, "steps": [{"id": "a", "command": ["true"]}]}
    ref = await flows.start(store, Flow.model_validate(definition))
    job = await one_job(store)
    await reserved(store, job, 100, flow_tree=ref.id, caps=Caps(flow=7))
    found = await budget(store, public_id("run", ref.id))
    assert (found.cap_micros, found.said_by, found.scope) == (1_500_000, "flow file", "flow")


async def test_a_call_asked_for_again_is_the_same_and_one_of_an_earlier_claim_is_lost(store: Store) -> None:
    job = await one_job(store)
    first = await reserved(store, job, call="turn 1", epoch=1)
    assert (await reserved(store, job, call="turn 1", epoch=1)).id == first.id
    again = await reserved(store, job, call="turn 1", epoch=2)
    assert again.id != first.id
    with pytest.raises(LeaseLost):
        await reserved(store, job, call="turn 1", epoch=1)
    assert [(one.state, one.cost_micros) for one in await store.charges(1)] == [("open", 0), ("lost", 100)]
    assert (await budget(store))[7:9] == (100, 100)


async def test_what_a_crash_left_open_is_lost_and_counts_with_its_ceiling(store: Store) -> None:
    job = await one_job(store)
    call = await reserved(store, job, call="turn 1")
    await reserved(store, job, call="turn 2")
    assert await budgets.lost(store, job, "turn 1") == 1
    assert await budgets.lost(store, job, "turn 1") == 0
    assert (await budget(store))[7:9] == (100, 100)
    assert await budgets.lost(store, job) == 1
    assert (await budget(store))[7:9] == (200, 0)
    await settled(store, call.id, 10)
    assert (await budget(store))[7:9] == (110, 0), "what came of it after all replaces the ceiling"


async def test_what_was_never_sent_costs_nothing(store: Store) -> None:
    call = await reserved(store, await one_job(store))
    await released(store, call.id)
    await released(store, call.id)
    await settled(store, call.id, 50)
    assert (await budget(store))[7:9] == (0, 0)


async def test_a_cost_over_the_ceiling_is_told_as_it_is(store: Store) -> None:
    job = await one_job(store)
    call = await reserved(store, job, 100, caps=Caps(tenant=100))
    await settled(store, call.id, 150)
    assert (await budget(store))[7:9] == (150, 0)
    await refused(store, job, 0, caps=Caps(tenant=100))


async def test_a_call_that_cannot_be_is_refused_as_bad_input(store: Store) -> None:
    for wrong in ({"ceiling": -1}, {"ceiling": 1 << 62}, {"tokens": -1}, {"model": ""}, {"call": "a\0b"}):
        with pytest.raises(BadInput):
            await ask(store, 1, **wrong)


# --- warnings


async def test_a_warning_comes_once_with_the_call_that_passes_the_mark(store: Store) -> None:
    job, caps = await one_job(store), Caps(tenant=1000, job=10_000)
    first, second, third = [await reserved(store, job, 300, caps=caps) for _ in range(3)]
    assert await settled(store, first.id, 300) is None
    assert await settled(store, second.id, 300) is None
    says = "the tenant's budget has $0.0008 of $0.001 spent"
    assert await settled(store, third.id, 200) == says.replace("$0.001 ", "$0.0010 ")
    assert (await reserved(store, job, 10, caps=caps)).warning is None
    (seen,) = await store.telemetry(JOB, job, 1)
    assert (seen.kind, json.loads(seen.payload)["budgets"]) == ("budget_warning", ["budget:tenant:total"])
    lowered = await reserved(store, job, 0, caps=Caps(tenant=1000, job=810))
    assert lowered.warning is not None
    assert public_id("job", job) in lowered.warning


# --- raising a cap, and what it lets go


async def hold(store: Store, jobs: list[int], name: str, **rest: Any) -> None:
    """As the worker does with a job whose call was refused."""
    await store.atomically(lambda tx: tx.execute(f"UPDATE jobs SET held_by = '{name}' WHERE id IN {tuple(jobs)}"))


async def held(store: Store, jobs: list[int]) -> int:
    return sum(row["held_by"] is not None for row in await store.rows(JOB, jobs, ("held_by",)))


async def test_a_raise_lets_go_what_then_fits(store: Store) -> None:
    jobs = await queued(store, 10)
    caps = Caps(tenant=100)
    await settled(store, (await reserved(store, jobs[0], 100, caps=caps)).id, 100)
    no = await refused(store, jobs[1], 50, caps=caps)
    await hold(store, jobs, no.hold or "")
    assert (await budget_caps.set_cap(store, 1, "tenant", 149, actor="ann")).let_go == 0
    raised = await budget_caps.set_cap(store, 1, "tenant", 350, actor="ann")
    assert (raised.let_go, raised.budget.said_by) == (5, "ann")
    assert await held(store, jobs) == 5
    await reserved(store, jobs[0], 200, caps=caps)  # what somebody said stands, whatever the configuration says
    assert (await budget_caps.set_cap(store, 1, "tenant", None, actor="ann")).let_go == 5
    assert await held(store, jobs) == 0


async def test_thousands_of_held_jobs_go_in_portions(store: Store) -> None:
    jobs = await queued(store, 1200)
    await refused(store, jobs[0], 1, caps=Caps(tenant=0))
    await hold(store, jobs, "budget:tenant:total")
    assert (await budget_caps.set_cap(store, 1, "tenant", 1100, actor="ann")).let_go == 1100
    assert await held(store, jobs) == 100


async def watched(store: Store) -> int:
    found: list[None] = []
    await BudgetWatch(store, lambda: found.append(None), Outage()).run_once()
    return len(found)


async def test_the_watch_lets_go_what_other_calls_did_not_need(store: Store) -> None:
    jobs, caps = await queued(store, 3), Caps(tenant=100)
    call = await reserved(store, jobs[0], 100, caps=caps)
    no = await refused(store, jobs[1], 45, caps=caps)
    await hold(store, jobs[1:], no.hold or "")
    assert await watched(store) == 0
    await settled(store, call.id, 10)
    assert await watched(store) == 1
    assert await held(store, jobs) == 0


async def test_a_job_that_would_not_fit_is_not_sent_round_and_round(store: Store) -> None:
    jobs, caps = await queued(store, 2), Caps(tenant=100)
    await settled(store, (await reserved(store, jobs[0], 100, caps=caps)).id, 60)
    no = await refused(store, jobs[1], 50, caps=caps)
    await hold(store, jobs, no.hold or "")
    assert [await watched(store) for _ in range(3)] == [0, 0, 0]
    assert await held(store, jobs) == 2


async def test_jobs_held_by_a_day_go_after_midnight(timed: Timed) -> None:
    store, jobs = timed.store, await queued(timed.store, 2)
    no = await refused(store, jobs[0], 50, caps=Caps(day=10))
    await hold(store, jobs, no.hold or "")
    assert no.until_us is not None
    await timed.advance(no.until_us - await store.now() - 1)
    assert await watched(store) == 0
    await timed.advance(1)
    assert await watched(store) == 1
    assert await held(store, jobs) == 0


async def test_a_job_held_just_after_its_budget_was_raised_is_not_forgotten(store: Store) -> None:
    jobs, caps = await queued(store, 2), Caps(tenant=10)
    no = await refused(store, jobs[0], 50, caps=caps)
    await budget_caps.set_cap(store, 1, "tenant", 1000, actor="ann")
    await hold(store, jobs, no.hold or "")
    assert await watched(store) == 1
    assert await held(store, jobs) == 0


async def test_a_hold_without_a_budget_lets_its_jobs_go(store: Store) -> None:
    jobs = await queued(store, 2)
    await hold(store, jobs, "budget:job:nonsense")
    assert await watched(store) == 1
    assert await held(store, jobs) == 0


async def test_what_is_no_budget_is_not_found(store: Store) -> None:
    for name in ("", "soon", "2026-13-01", "job_nonsense", "w_1"):
        with pytest.raises(NotFound):
            await budget_caps.set_cap(store, 1, name, 5, actor="ann")
    assert await store.budgets(1) == []


async def test_a_cap_is_given_before_the_first_call(store: Store) -> None:
    job = await one_job(store)
    await budget_caps.set_cap(store, 1, public_id("job", job), 5, actor="ann")
    await refused(store, job, 6, caps=Caps(job=1000))
    with pytest.raises(NotFound):
        await budget_caps.set_cap(store, 2, public_id("job", job), 5, actor="ann")


async def test_why_names_the_cap_what_is_spent_and_what_to_do(store: Store) -> None:
    jobs = await queued(store, 2)
    no = await refused(store, jobs[0], 60, caps=Caps(day=50))
    await hold(store, jobs, no.hold or "")
    _, (reason, *_) = await why(store, 1, public_id("job", jobs[0]))
    assert reason.cause == "budget"
    assert reason.says.startswith("the budget of the day ")
    assert "$0.00 of $0.00005 spent, and one call may cost $0.00006, which is more than the whole cap" in reason.says
    assert reason.clears_at == no.until_us
    assert reason.todo == f"keptwork budgets set {day_name(day_of(await store.now()))} USD"


# --- tokens


async def test_the_tokens_of_a_minute_are_shared_and_corrected_by_what_was_used(timed: Timed) -> None:
    store, job = timed.store, await one_job(timed.store)
    limit = {"tokens": 600, "tokens_per_minute": 1000}
    first = await reserved(store, job, **limit)
    no = await refused(store, job, **limit)
    assert (no.hold, no.until_us) == (None, await store.now() + 12_000_000)
    assert (await budget(store)).reserved_micros == 100
    await reserved(store, job, **limit, model="another")
    await settled(store, first.id, 10, Usage(100, 100))
    await reserved(store, job, **limit)
    no = await refused(store, job, **limit)
    await timed.advance((no.until_us or 0) - await store.now())
    await reserved(store, job, **limit)


async def check_share(store: Store) -> None:
    """Tenants that lock nothing in common but the tokens."""
    await store.lock_bucket("p", "m")
    limit = {"tokens": 100, "tokens_per_minute": 1000}
    answers = await asyncio.gather(*(ask(store, 1000 + tenant, tenant_id=tenant, **limit) for tenant in range(1, 41)))
    granted = sum(isinstance(answer, Reserved) for answer in answers)
    assert granted == 10, f"{granted} calls took the tokens of 10"


async def test_of_forty_tenants_that_ask_at_once_those_get_tokens_for_whom_there_are_some(timed: Timed) -> None:
    await check_share(timed.store)


async def test_askers_who_do_not_lock_the_tokens_are_caught_by_the_same_check(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, "lock_bucket", r"\{for_change\}")
    broken = await open_timed(postgres_copy)
    with pytest.raises(AssertionError, match="calls took the tokens of 10"):
        await check_share(broken.store)
    await broken.close()


async def test_what_was_not_sent_gives_its_tokens_back(store: Store) -> None:
    job, limit = await one_job(store), {"tokens": 1000, "tokens_per_minute": 1000}
    await released(store, (await reserved(store, job, **limit)).id)
    await reserved(store, job, **limit)


async def test_a_provider_that_says_when_to_come_back_is_left_alone_until_then(timed: Timed) -> None:
    store, job = timed.store, await one_job(timed.store)
    until = await store.now() + MINUTE
    await budgets.back_off(store, "p", "m", until)
    await budgets.back_off(store, "p", "m", until - 5)
    assert (await refused(store, job)).until_us == until
    await reserved(store, job, model="another")
    await timed.advance(MINUTE)
    await reserved(store, job)


# --- with a real worker


def spending_app(url: str) -> tuple[Keptwork, DeclaredJob, list[int]]:
    """Each job makes one call of 100; what is refused goes back to be held."""
    app, paid = Keptwork(url), []

    @app.job()
    async def think(ctx: Any) -> None:
        job: Job = ctx._job
        answer = await ask(await app.open(), job.id, 100, epoch=job.epoch, caps=Caps(tenant=300))
        if isinstance(answer, Refused):
            raise Suspended(Release(answer.reason, held_by=answer.hold))
        await settled(await app.open(), answer.id, 100)
        paid.append(job.id)

    return app, think, paid


def test_held_jobs_spend_no_attempt_and_go_on_when_the_cap_is_raised(database_url: str) -> None:
    async def story() -> None:
        app, think, paid = spending_app(database_url)
        async with app:
            store = await app.open()
            keys = [resolve(one.id).key for one in await app.enqueue_many(think, [{}] * 6)]
            await app.work(until_idle=True)
            assert len(paid) == 3
            assert await held(store, keys) == 3
            await budget_caps.set_cap(store, 1, "tenant", 600, actor="ann")
            await app.work(until_idle=True)
            rows = await store.rows(JOB, keys, ("state", "attempts"))
            assert {(row["state"], row["attempts"]) for row in rows} == {("succeeded", 1)}
            assert (await budget(store))[7:9] == (600, 0)

    asyncio.run(story())

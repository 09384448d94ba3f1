"""However a job ends, its calls to models are closed in the same transaction, and a late answer corrects the books."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents import budgets
from keptwork.agents import commands as agents
from keptwork.agents import engine as agent_moves
from keptwork.agents.budgets import Reserved
from keptwork.agents.conversation import Answer, Request, SystemFailure, Tell, Usage
from keptwork.core.ids import public_id, resolve
from keptwork.core.lifecycles import JOB, decide, insist
from keptwork.diagnostics import overrides
from keptwork.errors import LeaseLost
from keptwork.flows import commands as flows
from keptwork.flows.transaction import Actor
from keptwork.jobs import complete, queries
from keptwork.jobs.outcome import reaped
from keptwork.store.contract.budgets import Charge, NewCharge
from tests.conformance.stage import worker
from tests.worker.agent_scene import end_leases, record, row, started

PRICES = 'haiku = "m"\nmax_tokens = 100\n[models.prices."m"]\ninput_per_million_usd = 1\noutput_per_million_usd = 1'
COST = 15


class Slow:
    """A model that answers when it is told to, or fails."""

    name = "anthropic"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        self.asked.set()
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return Answer("It is mended.", "m", Usage(10, 5))


@pytest.fixture
def model(app: Keptwork, tmp_path: Path) -> Slow:
    (tmp_path / "keptwork.toml").write_text(f"[models]\n{PRICES}\n[budgets]\nday_usd = 1\n")
    app._config = str(tmp_path / "keptwork.toml")
    app.provider = model = Slow()
    return model


@asynccontextmanager
async def working(app: Keptwork, model: Slow, grace: str = "20s") -> AsyncIterator[None]:
    """A worker whose model was just asked."""
    work = asyncio.create_task(app.work(grace=grace, lease="20s"))
    try:
        async with asyncio.timeout(60):
            await model.asked.wait()
        yield
    finally:
        model.may_answer.set()
        app.stop()
        await work


async def charges(app: Keptwork) -> list[Charge]:
    return (await (await app.open()).charges(app.tenant_id))[::-1]


async def day(app: Keptwork) -> tuple[int, int]:
    """What is spent and reserved of the day."""
    (view,) = await (await app.open()).budgets(app.tenant_id, scope="day")
    return view.budget.spent_micros, view.budget.reserved_micros


async def until(app: Keptwork, *states: str) -> list[Charge]:
    found = await charges(app)
    async with asyncio.timeout(60):
        for _ in count():
            if [one.state for one in found] == list(states):
                break
            await asyncio.sleep(0.02)
            found = await charges(app)
    return found


async def test_late_answer_to_a_cancelled_job_replaces_the_bound_by_the_cost(app: Keptwork, model: Slow) -> None:
    agent, store = await started(app, tier="haiku"), await app.open()
    async with working(app, model):
        await queries.cancel(store, app.tenant_id, agent.job_id, hard=True)
        (lost,) = await charges(app)
        assert (lost.state, lost.cost_micros) == ("lost", lost.ceiling_micros)
        assert await day(app) == (lost.ceiling_micros, 0)
        assert (await record(app, agent)).cost_micros == lost.ceiling_micros
        model.may_answer.set()
        await until(app, "settled")
    assert await day(app) == (COST, 0)
    assert ((await row(app, agent))["cost_micros"], (await record(app, agent)).cost_micros) == (COST, COST)
    assert (await agents.find(store, app.tenant_id, agent.id))["calls"] == 1


async def test_late_failure_that_was_never_sent_gives_the_bound_back(app: Keptwork, model: Slow) -> None:
    agent = await started(app, tier="haiku")
    async with working(app, model):
        await queries.cancel(await app.open(), app.tenant_id, agent.job_id, hard=True)
        model.failure = SystemFailure("no connection", sent=False)
        model.may_answer.set()
        await until(app, "released")
    assert await day(app) == (0, 0)


@pytest.mark.acceptance
async def test_soft_cancel_lets_the_call_end_within_the_grace(app: Keptwork, model: Slow) -> None:
    agent, store = await started(app, tier="haiku"), await app.open()
    async with working(app, model):
        assert await queries.cancel(store, app.tenant_id, agent.job_id) == "asked to stop"
        await asyncio.sleep(0.6)  # the worker hears of it within a quarter of a second
        assert [one.state for one in await charges(app)] == ["open"]
        model.may_answer.set()
        (paid,) = await until(app, "settled")
    assert (paid.outcome, paid.cost_micros) == ("answered", COST)


@pytest.mark.acceptance
async def test_call_that_outlasts_the_grace_of_a_soft_cancel_is_lost_with_its_job(app: Keptwork, model: Slow) -> None:
    agent, store = await started(app, tier="haiku"), await app.open()
    async with working(app, model, grace="300ms"):
        await queries.cancel(store, app.tenant_id, agent.job_id)
        (lost,) = await until(app, "lost")
    assert (await queries.find(store, app.tenant_id, agent.job_id))["state"] == "cancelled"
    assert await day(app) == (lost.ceiling_micros, 0)


async def test_abandoned_flow_closes_the_calls_of_its_steps(app: Keptwork, model: Slow) -> None:
    handle = await app.start_flow({"name": "f", "steps": [{"id": "ask", "agent": "Fix it", "tier": "haiku"}]})
    store = await app.open()
    async with working(app, model):
        ref = await flows.found(store, handle.id, app.tenant_id)
        await flows.cancel(store, ref, Actor("ann"))
        (lost,) = await charges(app)
        assert (lost.state, await day(app)) == ("lost", (lost.ceiling_micros, 0))
        spent = (await handle.report()).spent
        assert (spent.micros, spent.lost, spent.lost_micros) == (lost.ceiling_micros, 1, lost.ceiling_micros)
        model.may_answer.set()
        await until(app, "settled")
    assert ((await handle.report()).cost, (await handle.report()).steps[0].cost) == (COST, COST)


async def claimed(app: Keptwork) -> tuple[Any, int]:
    """An agent job that a worker holds, with a call in flight."""
    store, agent = await app.open(), await started(app, tier="haiku")
    (job,) = await store.claim(await worker(store), ["default"], 1, 60_000_000, claim_id=1, start=True)
    given: dict[str, Any] = {"call": "turn", "provider": "p", "model": "m", "ceiling_micros": 100, "epoch": job.epoch}
    reserved = await budgets.reserve(store, tenant_id=app.tenant_id, job_id=job.id, flow_tree=None, **given)
    assert isinstance(reserved, Reserved)
    assert (job.id, await day(app)) == (agent.job_key, (0, 100))
    return job, reserved.id


@pytest.mark.parametrize("end", ["cancel", "fail", "dead_letter", "retry", "release", "override", "expire", "by hand"])
async def test_call_is_lost_in_the_transaction_that_ends_the_claim_of_its_job(app: Keptwork, end: str) -> None:
    store = await app.open()
    job, id = await claimed(app)
    facts: dict[str, Any] = {"token": job.token, "values": {"error": "no"}, "reason": "no", "actor": "w"}
    if end == "override":
        await overrides.overridden(store, app.tenant_id, job.public_id, "failed", reason="no", actor="ann")
    elif end == "expire":
        await end_leases(app)
        (overdue,) = await store.overdue(9)
        assert await complete.applied(store, [reaped(overdue, await store.now())]) == []
    elif end == "by hand":
        await store.apply([insist(decide(JOB, await queries.find(store, app.tenant_id, job.public_id), "cancel"))])
        assert await day(app) == (0, 100)
        await agent_moves.mend(store, 10)  # as workers do every second
    else:
        more: dict[str, Any] = {"reason_code": "infrastructure_failure"} if end == "dead_letter" else {}
        more |= {"permanent": True} if end == "fail" else {}
        facts["values"] = {"delay_us": 0} if end == "release" else {**facts["values"], "delay_us": 0}
        if end in ("cancel", "fail", "dead_letter"):
            facts["values"].pop("delay_us", None)
        assert await complete.applied(store, [insist(decide(JOB, job, end, **facts, **more))]) == []
    assert await day(app) == (100, 0)
    charge = await store.charge(id)
    assert charge is not None
    assert charge.state == "lost"


@asynccontextmanager
async def budgets_locked(app: Keptwork) -> AsyncIterator[None]:
    """The budget of the day is somebody else's until this is over."""
    store = await app.open()
    (view,) = await store.budgets(app.tenant_id, scope="day")
    async with store.transaction() as tx:
        await tx.lock_budgets(app.tenant_id, [view.budget.owner])
        yield


async def insist_closed_with_job(app: Keptwork, id: int, state: str) -> None:
    charge = await (await app.open()).charge(id)
    assert charge is not None
    assert charge.ended_at is not None
    assert charge.state == state
    job = await queries.find(await app.open(), app.tenant_id, public_id(JOB.name, charge.job_id))
    assert charge.created_at <= charge.ended_at <= job["completed_at"]


@pytest.mark.parametrize("end", ["cancel", "fail", "expire", "override", "without its flow"])
async def test_call_is_closed_when_its_job_ends_however_long_its_budgets_are_locked(app: Keptwork, end: str) -> None:
    store = await app.open()
    job, id = await claimed(app)
    if end == "expire":
        await end_leases(app)
        ((overdue,), now) = await store.overdue(9), await store.now()
        overdue.max_attempts = overdue.attempts
        ending: Any = complete.applied(store, [reaped(overdue, now)])
    elif end == "override":
        ending = overrides.overridden(store, app.tenant_id, job.public_id, "failed", reason="no", actor="ann")
    else:
        permanent = {"permanent": True} if end == "fail" else {}
        facts: dict[str, Any] = {"token": job.token, "values": {"error": "no"}, "reason": "no", **permanent}
        change = insist(decide(JOB, job, "fail" if end == "fail" else "cancel", **facts))
        ending = (complete._tree_by_tree if end == "without its flow" else complete.applied)(store, [change])
    async with budgets_locked(app):
        ended = asyncio.create_task(ending)
        await asyncio.wait([ended], timeout=0.3)
        assert not ended.done()
    await ended
    await insist_closed_with_job(app, id, "lost")


async def test_job_does_not_end_before_a_call_that_is_being_reserved(app: Keptwork) -> None:
    store, agent = await app.open(), await started(app, tier="haiku")
    (job,) = await store.claim(await worker(store), ["default"], 1, 60_000_000, claim_id=1, start=True)
    async with store.transaction() as tx:
        assert await tx.lock_jobs([job.id]) == {job.id: (job.epoch, None)}
        cancelled = asyncio.create_task(queries.cancel(store, app.tenant_id, agent.job_id, hard=True))
        await asyncio.wait([cancelled], timeout=0.3)
        id = await tx.open_charge(NewCharge(app.tenant_id, job.id, None, "turn", "p", "m", 100, 20_000))
    await cancelled
    await insist_closed_with_job(app, id, "lost")


async def test_job_does_not_end_before_a_call_that_is_being_closed(app: Keptwork) -> None:
    store = await app.open()
    job, id = await claimed(app)
    async with budgets_locked(app):
        paid = asyncio.create_task(store.atomically(lambda tx: budgets.settle(tx, id, cost_micros=7)))
        await asyncio.wait([paid], timeout=0.3)
        cancelled = asyncio.create_task(queries.cancel(store, app.tenant_id, job.public_id, hard=True))
        await asyncio.wait([cancelled], timeout=0.3)
        assert not paid.done()
        assert not cancelled.done()
    await asyncio.gather(paid, cancelled)
    await insist_closed_with_job(app, id, "settled")


async def test_worker_whose_job_has_ended_reserves_nothing_more(app: Keptwork) -> None:
    store = await app.open()
    job, _ = await claimed(app)
    await queries.cancel(store, app.tenant_id, job.public_id, hard=True)
    with pytest.raises(LeaseLost):
        await budgets.reserve(
            store,
            tenant_id=app.tenant_id,
            job_id=job.id,
            flow_tree=None,
            call="turn 2",
            provider="p",
            model="m",
            ceiling_micros=100,
            epoch=job.epoch,
        )
    assert await day(app) == (100, 0)


async def test_ledger_names_the_step_also_for_shares_of_a_crew(app: Keptwork, model: Slow) -> None:
    model.may_answer.set()
    handle = await app.start_flow({"name": "f", "steps": [{"id": "team", "crew": {"task": "Mend it", "workers": 2}}]})
    await app.work(until_idle=True)
    report = await handle.report()
    assert (report.word, report.cost, report.steps[0].cost) == ("succeeded", 2 * COST, 2 * COST)
    steps = await (await app.open()).step_costs(resolve(handle.id).key, resolve(handle.id).key)
    assert [cost.calls for cost in steps.values()] == [2]

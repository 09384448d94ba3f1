"""Random flows, damaged at random: once the doctor was there, every flow can end, and nothing is found again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, RUN, RUN_STEP, WORKSTREAM, WORKSTREAM_STEP
from keptwork.diagnostics.doctor import FLOW_CHECKS, runner, step_checks
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.maintenance.reconciler import FollowUp
from keptwork.store import Store
from keptwork.store.contract.flows_steps import NewGate
from tests.conformance.by_hand import Hand, hand_on
from tests.service.flow_driver import Driver, flow, step
from tests.service.test_doctor import obey

FOR_PEOPLE = {"blocked"}
INNER = flow(step("x"), step("ask", "x", approval={}), name="inner")


def random_flow(chance: random.Random) -> Flow:
    """Up to seven steps of every kind that is, each after some of those before it."""
    names = [f"s{number}" for number in range(chance.randint(1, 7))]
    kind = chance.choice(["run", "workstream", "workstream"])
    steps = []
    for place, name in enumerate(names):
        before = [] if kind == "run" else chance.sample(names[:place], chance.randint(0, min(2, place)))
        more: dict[str, Any] = chance.choice(
            [
                {},
                {},
                {"retries": 1},
                {"approval": {"expires": chance.choice(["1ms", "1h"])}},
                {"flow": "inner"},
                {"crew": {"task": "it", "workers": 2}},
                {} if kind == "run" else {"for_each": {"items": [1, 2, 3], "limit": 2}},
            ]
        )
        steps.append(step(name, *before, **more))
    extra: dict[str, Any] = {} if kind == "run" else {"max_retries": chance.randint(0, 1), "abandon_after": "1h"}
    return flow(*steps, kind=kind, **extra)


class Vandal:
    """Spoils what there is, by SQL that the guards let pass."""

    def __init__(self, store: Store, hand: Hand, chance: random.Random) -> None:
        self.store, self.hand, self.chance = store, hand, chance

    async def strike(self) -> None:
        often, seldom = (self.step, self.step, self.step, self.job, self.job), (self.flow, self.crew)
        await self.chance.choice((*often, *seldom, self.question, self.timer, self.gone))()

    async def one(self, sql: str) -> tuple[Any, ...] | None:
        rows = await self.hand.run(f"{sql} ORDER BY id")
        return self.chance.choice(rows) if rows else None

    async def override(self, table: str, id: int, state: str) -> None:
        await self.hand.run(
            f"UPDATE {table} SET state = '{state}', seq = seq + 1, move = 'override', reason = 'vandal' WHERE id = {id}"
        )

    async def step(self) -> None:
        found = await self.one("SELECT id, lifecycle FROM steps")
        if found is not None:
            lifecycle = RUN_STEP if found[1] == RUN_STEP.name else WORKSTREAM_STEP
            await self.override("steps", found[0], self.chance.choice(lifecycle.states).name)

    async def flow(self) -> None:
        lifecycle = self.chance.choice((RUN, WORKSTREAM))
        found = await self.one(f"SELECT id, state FROM {lifecycle.table}")
        if found is not None:
            await self.override(lifecycle.table, found[0], self.chance.choice(lifecycle.states).name)

    async def crew(self) -> None:
        found = await self.one("SELECT id, state FROM crews")
        if found is not None:
            await self.override("crews", found[0], self.chance.choice(CREW.states).name)

    async def job(self) -> None:
        found = await self.one("SELECT id, state FROM jobs WHERE completed_at IS NULL")
        if found is None:
            return
        ways = [("cancel", "cancelled")] if found[1] == "queued" else [("succeed", "succeeded"), ("fail", "failed")]
        trigger, state = self.chance.choice(ways)
        await self.hand.run(
            f"UPDATE jobs SET state = '{state}', seq = seq + 1, move = '{trigger}' WHERE id = {found[0]}"
        )

    async def question(self) -> None:
        if self.chance.random() < 0.5:
            await self.hand.run("UPDATE approvals SET decision = 'withdrawn' WHERE decision IS NULL")
            return
        found = await self.one("SELECT step_id, step, id FROM approvals WHERE step_id IS NOT NULL")
        if found is not None:
            await self.store.open_gate(NewGate(found[0], 1, found[1], "Really?", "another"))

    async def timer(self) -> None:
        for table in ("runs", "workstreams"):
            await self.hand.run(f"UPDATE {table} SET wake_at = NULL")

    async def gone(self) -> None:
        found = await self.one("SELECT id FROM jobs WHERE completed_at IS NOT NULL")
        if found is not None:
            await self.hand.run(f"DELETE FROM jobs WHERE id = {found[0]}")


async def cured(store: Store) -> tuple[int, int]:
    """Repairs and overrides until nothing is left to do; how many of each it took."""
    repairs = orders = 0
    asked: list[Finding] = []
    for _ in range(20):
        outcome = await runner.treat(store)
        repairs += len(outcome.repairs)
        assert not [one for one in outcome.left if one.fix], outcome
        assert not [repair for repair in outcome.repairs if repair.error], outcome
        asked = [one for one in outcome.left if one.check not in FOR_PEOPLE]
        if not asked:
            return repairs, orders
        for one in asked:
            orders += 1
            await obey(store, one.todo or "")
    raise AssertionError(f"there is no end to it: {asked}")


async def damaged(store: Store, url: str, seed: int, count: int) -> tuple[Driver, int]:
    """Flows somewhere in their work, and struck."""
    chance, driver = random.Random(seed), Driver(store)
    for _ in range(count):
        await flows.start(store, random_flow(chance), library={"inner": INNER})
        if chance.random() < 0.7:
            await driver.settle(await driver.start(chance.randint(1, 3)), lambda _: chance.random() < 0.2)
    await driver.start(chance.randint(0, 3))
    hand = await hand_on(url)
    vandal = Vandal(store, hand, chance)
    for _ in range(count):
        await vandal.strike()
    await hand.close()
    return driver, len(await runner.examine(store))


async def all_end_after_the_doctor(store: Store, url: str, seed: int, count: int) -> str:
    driver, found = await damaged(store, url, seed, count)
    await looked_after(store)
    repairs, orders = await cured(store)
    again = await runner.treat(store)
    assert again.repairs == []
    assert [one for one in again.found if one.check not in FOR_PEOPLE] == []
    await abandon_running_jobs(store)
    await driver.to_the_end()
    assert await driver.unfinished(RUN) == await driver.unfinished(WORKSTREAM) == []
    assert await runner.examine(store) == []
    return f"seed {seed}: {count} flows, {found} findings, {repairs} repairs, {orders} overrides"


async def looked_after(store: Store) -> None:
    """What every worker does for all: none of it may fall over what it finds."""
    for _ in range(3):
        await FollowUp(store, Outage()).run_once()
        await flows.wake(store)
        await Reaper(store, lambda: None, Outage()).run_once()


async def abandon_running_jobs(store: Store) -> None:
    """What was running when the vandal came is taken back, as the reaper would."""
    for row in await store.long_at_work(["running", "assigned"], await store.now(), 1_000):
        await obey(store, f"keptwork override {public_id('job', row['id'])} --to queued --reason TEXT")


@pytest.mark.parametrize("seed", range(2))
async def test_after_the_doctor_every_flow_ends(store: Store, database_url: str, seed: int) -> None:
    print(await all_end_after_the_doctor(store, database_url, seed, 8))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 140))
async def test_after_the_doctor_every_flow_ends_however_it_was_damaged(
    store: Store, database_url: str, seed: int
) -> None:
    print(await all_end_after_the_doctor(store, database_url, seed, 25))


async def test_a_doctor_who_lets_nothing_begin_is_caught(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: one check finds nothing, and some flow never ends."""

    def blind(_: object) -> list[Finding]:
        return []

    twin = tuple(FlowCheck(one.name, blind) if one is step_checks.READY else one for one in FLOW_CHECKS)
    monkeypatch.setattr(runner, "FLOW_CHECKS", twin)

    async def several() -> None:
        for seed in range(5):
            await all_end_after_the_doctor(store, database_url, seed, 8)

    with pytest.raises(AssertionError, match=r"\{'id': \d+, 'created_at'"):
        await several()

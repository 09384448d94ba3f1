"""Schedules: kept, due, moved on once, paused, and each tenant's by itself."""

from __future__ import annotations

import asyncio

import apsw
import asyncpg
import pytest

from keptwork.core.lifecycles import JOB
from keptwork.core.schedule_rules import Rule
from keptwork.jobs import schedules as service
from keptwork.store import NewJob, Store
from keptwork.store.contract.queues import Plan, Schedule
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.by_hand import Hand
from tests.conformance.promises import keeps
from tests.conformance.times import SECOND, SetClock

EVERY = Rule.of(every="1m")
MINUTE = 60 * SECOND


def minutely(name: str, next_at: int, tenant_id: int = 1, rule: Rule = EVERY, **job: int) -> Schedule:
    return Schedule.of(name, NewJob(name, '{"n":1}', tenant_id=tenant_id, **job), rule, "latest", "test", next_at)  # type: ignore[arg-type]  # numbers only


async def names(store: Store, limit: int = 10) -> list[str]:
    """What is due, by a plan that leaves all of it as it is."""
    seen: list[str] = []
    assert await store.fire_schedules(lambda schedule, _: seen.append(schedule.name), limit, 10) == 0
    return seen


async def moved_to(store: Store, next_at: int, last_at: int | None) -> int:
    return await store.fire_schedules(lambda _, __: Plan([], next_at, last_at), 10, 10)


async def only(store: Store, tenant_id: int = 1) -> Schedule:
    (schedule,) = await store.schedules(tenant_id)
    return schedule


@keeps(Writer.put_schedule, "Create a schedule or replace the definition of the one with this name")
@keeps(Reader.schedules, "Return the tenant's schedules by name, without those of other tenants")
async def test_a_schedule_is_kept_as_it_was_said(timed: Store, clock: SetClock, other_tenant: int) -> None:
    await timed.put_schedule(minutely("b", clock.now + 5, priority=3, max_attempts=9))
    await timed.put_schedule(minutely("a", clock.now + 7))
    await timed.put_schedule(minutely("c", clock.now, tenant_id=other_tenant))
    a, b = await timed.schedules(1)
    assert (a.name, b.name, a.next_at, b.next_at) == ("a", "b", clock.now + 7, clock.now + 5)
    assert b.job == NewJob("b", '{"n":1}', priority=3, max_attempts=9)
    assert (b.rule, b.catch_up, b.declared_by, b.last_at, b.paused_at) == (EVERY, "latest", "test", None, None)
    await timed.put_schedule(minutely("b", clock.now + 5)._replace(queue="other", catch_up="all"))
    _, b = await timed.schedules(1)
    assert (b.queue, b.catch_up, b.job.priority) == ("other", "all", 0)


@keeps(
    Writer.put_schedule,
    "A replaced schedule keeps its pause and its next tick",
    "Only if its rule changed does it take the given next tick",
)
async def test_what_is_said_anew_keeps_its_pause_and_how_far_it_has_got(timed: Store, clock: SetClock) -> None:
    await timed.put_schedule(minutely("a", clock.now))
    assert await moved_to(timed, clock.now + MINUTE, clock.now) == 1
    await timed.pause_schedule(1, "a")
    await timed.put_schedule(minutely("a", clock.now + 5))
    same = await only(timed)
    assert (same.next_at, same.last_at, same.paused_at) == (clock.now + MINUTE, clock.now, clock.now)
    for rule in (Rule.of(every="2m"), Rule.of(cron="* * * * *"), Rule.of(cron="* * * * *", tz="Europe/Berlin")):
        before = await only(timed)
        await timed.put_schedule(minutely("a", before.next_at + 5, rule=rule))
        after = await only(timed)
        assert (after.next_at, after.last_at, after.paused_at) == (before.next_at + 5, clock.now, clock.now)
        assert after.rule == rule


@keeps(
    Reader.schedule_due,
    "Return the microseconds until the next tick of any tenant's schedules, negative if it is past",
    "Return None if there is no schedule or all are paused",
)
async def test_the_next_tick_is_that_of_any_tenant(timed: Store, clock: SetClock, other_tenant: int) -> None:
    assert await timed.schedule_due() is None
    await timed.put_schedule(minutely("a", clock.now + 50))
    await timed.put_schedule(minutely("b", clock.now + 20, tenant_id=other_tenant))
    assert await timed.schedule_due() == 20
    await timed.pause_schedule(other_tenant, "b")
    assert await timed.schedule_due() == 50
    await clock.advance(60)
    assert await timed.schedule_due() == -10
    await timed.pause_schedule(1, "a")
    assert await timed.schedule_due() is None


@keeps(
    Writer.fire_schedules,
    "Fire at most `limit` schedules that are due and not paused, the longest overdue first",
    "For each, move it to its next tick and enqueue the jobs that the plan returns",
    "Return their number",
)
async def test_what_is_due_is_fired_the_longest_first(timed: Store, clock: SetClock, other_tenant: int) -> None:
    for name, at in (("soon", 1), ("now", 0), ("before", -5), ("paused", -9)):
        await timed.put_schedule(minutely(name, clock.now + at))
    await timed.put_schedule(minutely("foreign", clock.now - 7, tenant_id=other_tenant))
    await timed.pause_schedule(1, "paused")
    assert await names(timed) == ["foreign", "before", "now"]

    def plan(schedule: Schedule, now: int) -> Plan:
        return Plan([NewJob(schedule.name)] * 2, now + MINUTE, schedule.next_at)

    assert await timed.fire_schedules(plan, 2, 10) == 2
    assert sorted(row["kind"] for row in await timed.jobs()) == ["before", "before", "foreign", "foreign"]
    after = {schedule.name: schedule for schedule in await timed.schedules(1)}
    assert (after["before"].next_at, after["before"].last_at) == (clock.now + MINUTE, clock.now - 5)
    assert (after["now"].next_at, after["now"].last_at) == (clock.now, None)
    assert await names(timed) == ["now"]


async def test_a_schedule_that_fires_nothing_keeps_its_last_tick(timed: Store, clock: SetClock) -> None:
    await timed.put_schedule(minutely("a", clock.now))
    assert await moved_to(timed, clock.now, clock.now - 3) == 1
    assert await moved_to(timed, clock.now + 1, None) == 1
    assert ((await only(timed)).next_at, (await only(timed)).last_at) == (clock.now + 1, clock.now - 3)


@keeps(
    Writer.fire_schedules,
    "A schedule stays unchanged if the plan returns nothing or if its jobs would exceed `most_jobs`",
)
async def test_a_schedule_stays_as_it_is_if_its_jobs_would_make_too_many(timed: Store, clock: SetClock) -> None:
    for place, name in enumerate(("three", "two", "one", "none")):
        await timed.put_schedule(minutely(name, clock.now - 9 + place))
    sizes = {"three": 3, "two": 2, "one": 1}

    def plan(schedule: Schedule, now: int) -> Plan | None:
        size = sizes.get(schedule.name)
        return None if size is None else Plan([NewJob(schedule.name)] * size, now + MINUTE, now)

    assert await timed.fire_schedules(plan, 10, 4) == 2
    assert await names(timed) == ["two", "none"]
    assert len(await timed.jobs()) == 4


@keeps(
    Writer.fire_schedules,
    "A schedule that another caller is firing is skipped",
    "Each tick is fired once",
)
async def test_what_one_is_firing_nobody_else_is(store: Store) -> None:
    """SQLite keeps the second waiting until the first has ended; PostgreSQL shows it what is left."""
    now = await store.now()
    for name in ("a", "b"):
        await store.put_schedule(minutely(name, now - 1))
    inside, leave = asyncio.Event(), asyncio.Event()

    def plan(schedule: Schedule, _: int) -> Plan:
        return Plan([NewJob(schedule.name)], now + 60 * MINUTE, now)

    async def first() -> None:
        async with store.transaction() as transaction:
            assert await transaction.fire_schedules(plan, 1, 10) == 1
            inside.set()
            await leave.wait()

    async def second() -> int:
        await inside.wait()
        return await store.fire_schedules(plan, 10, 10)

    tasks = asyncio.create_task(first()), asyncio.create_task(second())
    await inside.wait()
    await asyncio.wait({tasks[1]}, timeout=0.1)
    leave.set()
    await tasks[0]
    assert await tasks[1] == 1
    assert sorted(row["kind"] for row in await store.jobs()) == ["a", "b"]


@keeps(
    Writer.pause_schedule,
    "Pause a schedule, so that it is never due until it is resumed",
    "Repeating the call changes nothing",
    "Return False if there is no such schedule",
)
@keeps(
    Writer.resume_schedule,
    "Resume a paused schedule from this tick",
    "A schedule that is not paused stays unchanged",
    "Return False if there is no such schedule",
)
async def test_a_paused_schedule_is_not_due_until_it_is_resumed(
    timed: Store, clock: SetClock, other_tenant: int
) -> None:
    await timed.put_schedule(minutely("a", clock.now))
    assert await timed.pause_schedule(1, "a")
    paused = clock.now
    await clock.advance(SECOND)
    assert await timed.pause_schedule(1, "a")
    assert (await only(timed)).paused_at == paused
    assert await names(timed) == []
    assert await timed.resume_schedule(1, "a", clock.now + SECOND)
    assert await timed.resume_schedule(1, "a", clock.now + 9 * SECOND)
    assert await names(timed) == []
    await clock.advance(SECOND)
    assert await names(timed) == ["a"]
    assert not await timed.pause_schedule(other_tenant, "a")
    assert not await timed.resume_schedule(other_tenant, "a", 0)
    assert (await only(timed)).paused_at is None


@keeps(
    Writer.drop_schedule,
    "Delete a schedule and leave the jobs that it enqueued",
    "Return False if there is no such schedule",
)
async def test_a_dropped_schedule_is_gone_and_its_jobs_stay(store: Store, other_tenant: int) -> None:
    await store.put_schedule(minutely("a", await store.now() - 1))
    assert await service.fire(store) == 1
    assert not await store.drop_schedule(other_tenant, "a")
    assert await store.drop_schedule(1, "a")
    assert not await store.drop_schedule(1, "a")
    assert await store.schedules(1) == []
    assert len(await store.jobs()) == 1


# --- what the database itself sees to


async def test_a_rule_is_an_expression_or_an_interval_whoever_writes_it(store: Store, hand: Hand) -> None:
    await store.put_schedule(minutely("a", 0))
    for change in ("cron = '* * * * *'", "every_us = NULL"):
        with pytest.raises((apsw.ConstraintError, asyncpg.CheckViolationError)):
            await hand.run(f"UPDATE schedules SET {change}")


async def test_postgres_shows_a_tenant_only_its_own_schedules(postgres_store: Store) -> None:
    other = await postgres_store.add_tenant("other")
    await postgres_store.put_schedule(minutely("a", 0))
    await postgres_store.put_schedule(minutely("b", 0, tenant_id=other))
    async with postgres_store.transaction(tenant_id=other) as transaction:
        assert await transaction.schedules(1) == []
        assert await transaction.fire_schedules(lambda _, now: Plan([], now + MINUTE, 7), 10, 10) == 1
        assert not await transaction.drop_schedule(1, "a")
    assert [(await only(postgres_store, tenant)).last_at for tenant in (1, other)] == [None, 7]


async def test_firing_enqueues_each_tenants_job_for_that_tenant(store: Store, other_tenant: int) -> None:
    now = await store.now()
    await store.put_schedule(minutely("a", now - 1, priority=7))
    await store.put_schedule(minutely("a", now - 1, tenant_id=other_tenant))
    assert await service.fire(store) == 2
    rows = await store.jobs(columns=("tenant_id", "priority", "kind", "cause", "actor", "correlation_id"))
    assert sorted((row["tenant_id"], row["priority"]) for row in rows) == [(1, 7), (other_tenant, 0)]
    assert {(row["kind"], row["cause"], row["actor"]) for row in rows} == {("a", "schedule a", "scheduler")}
    assert all(row["correlation_id"].startswith("schedule:a@") for row in rows)
    assert await store.counts(JOB) == (2, 0)

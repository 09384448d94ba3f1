"""Schedules as applications declare them and operators handle them, on both stores, under a clock that is set."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from keptwork import Keptwork
from keptwork.core.schedule_rules import Rule, next_tick
from keptwork.errors import BadInput, NotFound
from keptwork.jobs import schedules
from keptwork.jobs.schedules import Declaration
from keptwork.store import NewJob, Store
from keptwork.store.contract.queues import Schedule
from tests.support.database_time import Timed, open_timed
from tests.worker.scene import eventually, working

MINUTE = 60_000_000


async def put(store: Store, name: str, catch_up: str = "latest", tenant_id: int = 1, **rule: str) -> Schedule:
    declared = Declaration.of(name, Rule.of(**rule), catch_up)
    await schedules.put(store, declared, NewJob("noop", tenant_id=tenant_id), "test")
    return await schedules.find(store, tenant_id, name)


async def ticks(store: Store) -> list[str]:
    rows = await store.jobs(newest_first=False, limit=5000, columns=("id", "correlation_id"))
    return [row["correlation_id"] for row in rows]


async def test_a_tick_is_fired_once_it_has_come(timed: Timed) -> None:
    first = await put(timed.store, "a", every="1m")
    assert await schedules.fire(timed.store) == 0
    await timed.advance(first.next_at - await timed.store.now())
    assert await schedules.fire(timed.store) == 1
    assert await schedules.fire(timed.store) == 0
    after = await schedules.find(timed.store, 1, "a")
    assert (after.last_at, after.next_at) == (first.next_at, first.next_at + MINUTE)
    assert len(await ticks(timed.store)) == 1


@pytest.mark.parametrize(("policy", "fired"), [("latest", 1), ("all", 61), ("none", 0)])
async def test_after_an_hour_without_workers_each_policy_does_as_it_says(timed: Timed, policy: str, fired: int) -> None:
    first = await put(timed.store, "a", policy, cron="*/2 * * * *")
    await timed.advance(first.next_at - await timed.store.now() + 121 * MINUTE + MINUTE // 2)
    assert await schedules.fire(timed.store) == 1
    assert len(await ticks(timed.store)) == len(set(await ticks(timed.store))) == fired
    after = await schedules.find(timed.store, 1, "a")
    assert after.next_at == next_tick(after.rule, await timed.store.now())


async def test_a_crowd_of_missed_ticks_is_enqueued_in_bounded_transactions(timed: Timed) -> None:
    for name in ("a", "b", "c"):
        await put(timed.store, name, "all", every="1s")
    await timed.advance(600 * 1_000_000)
    assert [await schedules.fire(timed.store) for _ in range(4)] == [1, 1, 1, 0]
    assert len(set(await ticks(timed.store))) == 1800


async def test_what_passed_during_a_pause_is_over(timed: Timed) -> None:
    await put(timed.store, "a", "all", every="1m")
    assert (await schedules.pause(timed.store, 1, "a")).paused_at is None
    await timed.advance(60 * MINUTE)
    assert await schedules.fire(timed.store) == 0
    assert (await schedules.resume(timed.store, 1, "a")).paused_at is not None
    assert await schedules.fire(timed.store) == 0
    await timed.advance(MINUTE)
    await schedules.fire(timed.store)
    assert len(await ticks(timed.store)) == 1


async def test_a_rule_that_is_said_anew_does_not_lose_what_was_missed(timed: Timed) -> None:
    await put(timed.store, "a", every="1m")
    await timed.advance(5 * MINUTE)
    await put(timed.store, "a", "all", every="1m")
    await schedules.fire(timed.store)
    assert len(await ticks(timed.store)) == 5


async def test_a_schedule_runs_out_of_turn_without_losing_its_turn(timed: Timed) -> None:
    before = await put(timed.store, "a", every="1m")
    await schedules.run_now(timed.store, 1, "a", "cli:ann")
    assert await schedules.find(timed.store, 1, "a") == before
    (row,) = await timed.store.jobs(columns=("actor", "cause"))
    assert row == {"actor": "cli:ann", "cause": "schedule a"}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("tz = 'Mars/Base'", "'Mars/Base' is no time zone; say a name like Europe/Berlin"),
        ("cron = 'often'", "Wrong number of fields"),
    ],
)
async def test_a_schedule_this_machine_cannot_read_stops_no_other(
    timed: Timed, caplog: pytest.LogCaptureFixture, written: str, says: str
) -> None:
    await put(timed.store, "good", every="1m")
    odd = await put(timed.store, "odd", cron="* * * * *", tz="Europe/Berlin")
    async with timed.store.transaction() as transaction:
        await transaction.execute(f"UPDATE schedules SET {written} WHERE name = 'odd'")
    await timed.advance(MINUTE)
    schedules._complain.cache_clear()  # it is said once in a process
    with caplog.at_level(logging.WARNING):
        assert [await schedules.fire(timed.store) for _ in range(3)] == [1, 0, 0]
    assert [record.message for record in caplog.records] == [f"schedule odd cannot be fired here: {says}"]
    assert (await schedules.find(timed.store, 1, "odd")).next_at == odd.next_at


async def test_an_operator_adds_no_schedule_over_another_and_finds_none_of_another_tenant(timed: Timed) -> None:
    declared, job = Declaration.of("a", Rule.of(every="1m")), NewJob("noop")
    made = await schedules.add(timed.store, declared, job, "cli:ann")
    assert made.declared_by == "cli:ann"
    with pytest.raises(BadInput, match="there is a schedule 'a' already"):
        await schedules.add(timed.store, declared, job, "cli:ann")
    other = await timed.store.add_tenant("other")
    for verb in (schedules.find, schedules.pause, schedules.resume, schedules.delete):
        with pytest.raises(NotFound, match="No schedule a; list them with: keptwork schedules list"):
            await verb(timed.store, other, "a")
    assert await schedules.delete(timed.store, 1, "a") == made


@pytest.mark.parametrize("name", ["", "\n", "x" * 501])
def test_a_name_is_printable_and_not_too_long(name: str) -> None:
    with pytest.raises(BadInput):
        Declaration.of(name, Rule.of(every="1m"))


# --- declared in code


async def test_a_worker_keeps_what_is_declared_and_fires_it(database_url: str) -> None:
    seen: list[tuple[str, datetime]] = []
    async with Keptwork(database_url) as app:

        @app.schedule(every="1s", arguments={"name": "ann"})
        @app.job(queue="often", max_attempts=7)
        async def greet(ctx, name):
            seen.append((name, ctx.scheduled_at))

        app.schedule(greet, cron="0 9 * * mon", tz="Europe/Berlin", name="weekly", arguments={"name": "bob"})
        store = await app.open()

        async def twice() -> bool:
            return len(seen) >= 2

        async with working(app):
            await eventually(twice)
        often, weekly = await store.schedules(1)
        assert (often.name, often.queue, often.job.max_attempts, often.declared_by) == ("greet", "often", 7, "code")
        assert (weekly.cron, weekly.tz, weekly.payload) == ("0 9 * * mon", "Europe/Berlin", '{"name":"bob"}')
    (one, first), (_, second) = seen[:2]
    assert one == "ann"
    assert first < second
    assert (first.microsecond, first.tzinfo) == (0, UTC)


async def test_a_pause_stays_when_a_worker_starts_and_what_is_no_longer_declared_stays_too(
    database_url: str,
) -> None:
    async with Keptwork(database_url) as app:

        @app.schedule(every="1h")
        @app.job()
        async def greet(ctx): ...

        store = await app.open()
        await put(store, "old", every="1h")
        await app.work(until_idle=True)
        await schedules.pause(store, 1, "greet")
        await app.work(until_idle=True)
        assert [(one.name, one.paused_at is not None) for one in await store.schedules(1)] == [
            ("greet", True),
            ("old", False),
        ]


async def test_what_is_declared_wrongly_is_refused_where_it_is_declared() -> None:
    app = Keptwork("sqlite:///:memory:")

    @app.job()
    async def greet(ctx, name): ...

    for how, says in (
        ({"cron": "0 25 * * *"}, "schedule greet: cron '0 25 * * *': bad hour '25'"),
        ({"every": "1m"}, "schedule greet: job greet: missing a required argument: 'name'"),
        ({"every": "1m", "arguments": {"name": 1}, "catch_up": "some"}, "schedule greet: catch_up is 'some'"),
        ({"every": "1m", "tz": "Mars/Base"}, "schedule greet: 'Mars/Base' is no time zone"),
    ):
        with pytest.raises(BadInput) as refused:
            app.schedule(greet, **how)
        assert says in str(refused.value)
    app.schedule(cron="* * * * *", arguments={"name": "ann"}, name="by keyword")(greet)
    app.schedule(greet, every="1m", arguments={"name": "ann"})
    with pytest.raises(BadInput, match="two schedules called 'greet'"):
        app.schedule("* * * * *", arguments={"name": "bob"})(greet)


async def test_many_at_once_fire_a_tick_once(database_url: str) -> None:
    timed = await open_timed(database_url)
    try:
        for name in "abc":
            await put(timed.store, name, every="1m")
        await timed.advance(MINUTE)
        moved = await asyncio.gather(*(schedules.fire(timed.store) for _ in range(8)))
        while await schedules.fire(timed.store):
            raise AssertionError("something was left")
        assert sum(moved) == len(await ticks(timed.store)) == 3
    finally:
        await timed.close()

"""Breakers in the store: found and locked by name, and the jobs they hold back and let go."""

from __future__ import annotations

import asyncio
from typing import Any

from keptwork.core.lifecycles import BREAKER, JOB
from keptwork.store import NewJob, Store
from keptwork.store.contract.records import LimitRule
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, entity, lost_jobs, moved, queued, started, worker
from tests.conformance.times import SECOND, SetClock

HOLD = "breaker:api"


async def made(store: Store, name: str = "api", **columns: Any) -> int:
    return await store.create(BREAKER, **{"name": name, "failure_threshold": 1, **columns})


async def tripped(store: Store, name: str = "api", **columns: Any) -> int:
    id = await made(store, name, **columns)
    await store.amend(BREAKER, [id], columns.get("tenant_id", 1), failures=1)
    await moved(store, BREAKER, id, "trip", values={"failures": 1, "error": "down"})
    return id


async def holds(store: Store, ids: list[int]) -> list[str | None]:
    return [(await entity(store, JOB, id))["held_by"] for id in ids]


@keeps(
    Reader.breaker,
    "Return a breaker by its name",
    "Return None for another tenant's breaker, as for one that does not exist",
)
async def test_a_breaker_is_found_by_its_name_within_its_tenant(store: Store, other_tenant: int) -> None:
    id = await made(store, cooldown_us=7)
    found = await store.breaker(1, "api")
    assert found is not None
    assert (found["id"], found["state"], found["cooldown_us"]) == (id, "CLOSED", 7)
    assert await store.breaker(other_tenant, "api") is None
    assert await store.breaker(1, "other") is None


@keeps(
    Reader.breakers,
    "Return the tenant's breakers by name, or the one with this name",
    "Each has the number of queued jobs it holds",
)
async def test_breakers_are_listed_by_name_with_what_they_hold(store: Store, other_tenant: int) -> None:
    for name in ("b", "a"):
        await made(store, name)
    await made(store, "a", tenant_id=other_tenant)
    await queued(store, 2, held_by="breaker:a")
    await queued(store, 3, held_by="breaker:a", tenant_id=other_tenant)
    ended, *_ = await queued(store, held_by="breaker:a")
    await moved(store, JOB, ended, "cancel")
    assert [(one.row["name"], one.held) for one in await store.breakers(1)] == [("a", 2), ("b", 0)]
    assert [(one.row["name"], one.held) for one in await store.breakers(1, "b")] == [("b", 0)]
    assert await store.breakers(1, "c") == []


@keeps(
    Reader.breakers_that_hold,
    "Return at most `limit` breakers of any tenant that opened and still need attention",
    "Their IDs are above `after`",
    "Each shows whether jobs that need it are not held yet, whether it holds any jobs, and whether its probe "
    "is running",
)
async def test_breakers_to_look_after_say_what_there_is_to_do(store: Store, other_tenant: int) -> None:
    await made(store, "closed")
    first = await tripped(store, cooldown_us=0)
    second = await tripped(store, tenant_id=other_tenant)
    assert [one.row["id"] for one in await store.breakers_that_hold(9)] == [first, second]
    assert [one.row["id"] for one in await store.breakers_that_hold(9, first)] == [second]
    (only,) = await store.breakers_that_hold(1)
    assert tuple(only)[1:] == (False, False, False)
    (unheld,) = await queued(store, hold_key=HOLD)
    await queued(store, held_by=HOLD)
    await queued(store, queue="probes")
    (probe,) = await claim(store, await worker(store), 1, "probes", start=True)
    await moved(store, BREAKER, first, "probe", values={"probe_job": probe.id, "probe_epoch": probe.epoch})
    assert tuple((await store.breakers_that_hold(1))[0])[1:] == (True, True, True)
    await store.amend(BREAKER, [first], 1, candidate=unheld, probe_epoch=probe.epoch + 1)
    assert tuple((await store.breakers_that_hold(1))[0])[1:] == (False, True, False)
    await store.amend(BREAKER, [first], 1, holds=0)
    assert [one.row["id"] for one in await store.breakers_that_hold(9)] == [second]


@keeps(Reader.is_claimed, "Return whether the claim of a job under this epoch is alive")
async def test_a_claim_is_alive_until_it_is_lost_in_any_way(timed: Store, clock: SetClock) -> None:
    job = await started(timed)
    assert await timed.is_claimed(job.id, job.epoch)
    assert not await timed.is_claimed(job.id, job.epoch + 1)
    await moved(timed, JOB, job.id, "cancel")
    async for way, lost in lost_jobs(timed, clock):
        assert not await timed.is_claimed(lost.id, lost.epoch), way


@keeps(Reader.holds_any, "Return whether a queued job of the tenant has exactly this hold")
async def test_whether_anything_is_held_by_a_name(store: Store, other_tenant: int) -> None:
    await queued(store, held_by=HOLD, tenant_id=other_tenant)
    await queued(store, held_by=f"{HOLD}s")
    assert not await store.holds_any(1, HOLD)
    assert await store.holds_any(other_tenant, HOLD)
    (id,) = await queued(store, held_by=HOLD)
    assert await store.holds_any(1, HOLD)
    await moved(store, JOB, id, "cancel")
    assert not await store.holds_any(1, HOLD)


@keeps(
    Writer.lock_breaker,
    "In a transaction, lock the breaker with this name against changes until the transaction ends",
    "Return None if there is none",
)
async def test_of_two_who_lock_a_breaker_the_second_sees_what_the_first_has_done(store: Store) -> None:
    id = await made(store)
    locked = asyncio.Event()

    async def first() -> None:
        async with store.transaction() as tx:
            assert await tx.lock_breaker(1, "api") is not None
            locked.set()
            await asyncio.sleep(0.2)
            await tx.amend(BREAKER, [id], 1, failures=7)

    async def second() -> int:
        await locked.wait()
        async with store.transaction() as tx:
            row = await tx.lock_breaker(1, "api")
            assert row is not None
            return int(row["failures"])

    assert (await asyncio.gather(first(), second()))[1] == 7
    async with store.transaction() as tx:
        assert await tx.lock_breaker(1, "nothing") is None


@keeps(
    Writer.hold_back,
    "Hold at most `limit` queued jobs of the tenant that have this hold key and no hold yet",
    "Leave out the job `besides`",
    "Return the number of held jobs",
)
async def test_jobs_are_held_back_by_their_key_some_at_a_time(store: Store, other_tenant: int) -> None:
    ids = await queued(store, 4, hold_key=HOLD)
    others = [*await queued(store), *await queued(store, hold_key="breaker:b")]
    others += await queued(store, hold_key=HOLD, tenant_id=other_tenant)
    limited = await queued(store, hold_key=HOLD, held_by="limit", limit_key="*:kind")
    assert await store.hold_back(1, HOLD, 2) == 2
    assert (await holds(store, ids)).count(HOLD) == 2
    free = [id for id, held in zip(ids, await holds(store, ids), strict=True) if held is None]
    assert await store.hold_back(1, HOLD, 9, besides=free[0]) == 1
    assert await holds(store, free) == [None, HOLD]
    assert await store.hold_back(1, HOLD, 9) == 1
    assert await store.hold_back(1, HOLD, 9) == 0
    assert await holds(store, [*others, *limited]) == [None, None, None, "limit"]
    claimed = await claim(store, await worker(store))
    assert {job.id for job in claimed} == set(others)


async def test_a_job_that_is_running_is_not_held(store: Store) -> None:
    job = await started(store, hold_key=HOLD)
    assert await store.hold_back(1, HOLD, 9) == 0
    assert await holds(store, [job.id]) == [None]


async def test_a_job_that_is_held_gives_its_place_under_a_limit_to_another(store: Store, other_tenant: int) -> None:
    await store.declare_limits([LimitRule("job", "kind", 1)])
    alike: dict[str, Any] = {"limit_key": "*:kind", "held_by": "limit"}
    first = (await queued(store, hold_key=HOLD, **alike))[0]
    assert await store.pump() == 1
    second = (await queued(store, tenant_id=other_tenant, **alike))[0]
    assert await store.pump() == 0
    assert await store.hold_back(1, HOLD, 9) == 1
    assert await store.pump() == 1
    assert await holds(store, [first, second]) == [HOLD, None]


@keeps(
    Writer.let_go,
    "Lift this hold from at most `limit` queued jobs of the tenant, as far as their limits allow",
    "Return the number of jobs",
)
async def test_jobs_are_let_go_some_at_a_time_back_behind_their_limits(store: Store, other_tenant: int) -> None:
    await store.declare_limits([LimitRule("job", "kind", 1)])
    ids = await queued(store, 3, held_by=HOLD)
    others = [*await queued(store, held_by=f"{HOLD}s"), *await queued(store, held_by=HOLD, tenant_id=other_tenant)]
    limited = await queued(store, held_by=HOLD, limit_key="*:kind")
    assert [await store.let_go(1, HOLD, 3), await store.let_go(1, HOLD, 3), await store.let_go(1, HOLD, 3)] == [3, 1, 0]
    assert await holds(store, ids) == [None] * 3
    assert await holds(store, [*others, *limited]) == [f"{HOLD}s", HOLD, "limit"]
    assert await store.pump() == 1
    assert await holds(store, limited) == [None]


@keeps(
    Writer.let_one_go,
    "Lift this hold from one due job, and return the job and its queue, or None if there is none",
    "It comes from the next queue by name after `after`, or from the first queue again",
    "Within the queue, the highest priority goes first, then the earliest due time",
)
async def test_one_job_is_let_go_queue_after_queue(timed: Store, clock: SetClock, other_tenant: int) -> None:
    now = await timed.now()
    jobs = {
        name: NewJob("kind", queue=queue, priority=priority, run_at=now + at, held_by=HOLD)
        for name, queue, priority, at in (
            ("old", "a", 1, -SECOND),
            ("young", "a", 1, 0),
            ("urgent", "a", 5, 0),
            ("later", "a", 9, 60 * SECOND),
            ("b", "b", 0, 0),
            ("never", "c", 0, 60 * SECOND),
        )
    }
    ids = dict(zip(jobs, await timed.enqueue(list(jobs.values())), strict=True))
    await timed.enqueue([NewJob("kind", queue="a", held_by=HOLD, tenant_id=other_tenant)])
    await clock.advance(SECOND)
    assert await timed.let_one_go(1, HOLD) == (ids["urgent"], "a")
    assert await timed.let_one_go(1, HOLD, "a") == (ids["b"], "b")
    assert await timed.let_one_go(1, HOLD, "b") in ((ids["old"], "a"), (ids["young"], "a"))
    assert await timed.let_one_go(1, HOLD, "z") in ((ids["old"], "a"), (ids["young"], "a"))
    assert await timed.let_one_go(1, HOLD, "a") is None
    assert await holds(timed, [ids["later"], ids["never"]]) == [HOLD, HOLD]

"""What was built apart and meets in one job: limits with waits, versions, schedules and jobs that start at once."""

from __future__ import annotations

import asyncio

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from tests.worker.scene import eventually, row, triggers, working


async def test_a_limited_job_that_waits_gives_its_place_up_and_goes_on_when_it_is_woken(app: Keptwork) -> None:
    """With one place, the sender could never run while the waiter held it."""

    @app.job(limit=1)
    async def waits(ctx: Context, sends: bool) -> object:
        if sends:
            await app.send_event("go", 7)
            return None
        return await ctx.wait_for_event("go", timeout="30s")

    async with working(app):
        waiter = await waits.enqueue(sends=False)

        async def is_waiting() -> bool:
            return (await row(app, waiter))["waits_for"] is not None

        await eventually(is_waiting)
        await (await waits.enqueue(sends=True)).result("60s")
        assert await waiter.result("60s") == 7


async def test_limited_children_are_joined_by_a_limited_parent(app: Keptwork) -> None:
    @app.job(limit=1)
    async def child(ctx: Context, n: int) -> int:
        await ctx.sleep("10ms")
        return n

    @app.job(limit=1)
    async def parent(ctx: Context) -> object:
        return await ctx.join(await ctx.spawn_many(child, [{"n": n} for n in range(3)]))

    async with working(app, concurrency=2):
        first, second = await parent.enqueue(), await parent.enqueue()
        assert [await first.result("60s"), await second.result("60s")] == [[0, 1, 2], [0, 1, 2]]


async def test_a_job_held_for_its_version_falls_under_its_limit_again(app: Keptwork) -> None:
    store = await app.open()

    @app.job(limit=1, version=1)
    async def versioned(ctx: Context) -> int:
        return 1

    await app.declare_limit(versioned.kind)
    new = app.new_job(versioned.kind, {})._replace(held_by="version:versioned@1")
    (key,) = await store.enqueue([new])
    assert await store.lift_holds(["version:versioned@1"]) == 1
    (found,) = await store.jobs(columns=("id", "held_by"))
    assert found == {"id": key, "held_by": "limit"}
    assert await app.work(until_idle=True) == 1


@pytest.mark.acceptance
async def test_a_job_that_starts_where_it_is_enqueued_respects_the_limit_of_its_queue(app: Keptwork) -> None:
    gate, most, now = asyncio.Event(), 0, 0
    app.limit_queue("default", limit=1)

    @app.job()
    async def counted(ctx: Context) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await gate.wait()
        now -= 1

    async with working(app):
        await asyncio.sleep(0.3)
        jobs = [await counted.enqueue() for _ in range(4)]
        await asyncio.sleep(0.3)
        gate.set()
        for job in jobs:
            await job.result("60s")
    assert most == 1
    assert (await triggers(app, jobs[0]))[-1] == "succeed"


async def test_scheduled_jobs_fall_under_the_limit_of_their_kind(app: Keptwork) -> None:
    @app.schedule(every="1s", name="often")
    @app.job(limit=1)
    async def ticking(ctx: Context) -> None: ...

    await ticking.enqueue()
    assert await app.work(until_idle=True) >= 1
    (schedule,) = await (await app.open()).schedules(1)
    assert '"limit_key": "*:ticking"' in schedule.rules
    assert '"held_by": "limit"' in schedule.rules

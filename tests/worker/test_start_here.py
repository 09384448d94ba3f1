"""A job enqueued beside an idle worker starts at once, and overtakes nobody."""

from __future__ import annotations

import asyncio
import time

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.core import metrics
from keptwork.errors import StillUnfinished
from tests.worker.scene import eventually, last, triggers, working
from tests.worker.test_tallies import counted


async def rests(app: Keptwork) -> None:
    """The worker has registered, and found nothing due."""

    async def resting() -> bool:
        return bool(app._workers) and not app._workers[0]._maybe_due

    await eventually(resting)


async def test_beside_an_idle_worker_a_job_is_running_when_enqueue_returns(app: Keptwork) -> None:
    @app.job()
    async def quick(ctx: Context) -> int:
        return ctx.attempt

    async with working(app):
        await rests(app)
        job = await quick.enqueue()
        assert (await triggers(app, job))[:3] == ["enqueue", "claim", "start"]
        assert await job.result("60s") == 1


async def test_with_no_slot_free_it_waits_in_the_queue(app: Keptwork) -> None:
    gate = asyncio.Event()

    @app.job()
    async def slow(ctx: Context) -> None:
        await gate.wait()

    async with working(app, concurrency=1):
        await rests(app)
        first, second = await slow.enqueue(), await slow.enqueue()
        assert len(await triggers(app, first)) == 3
        assert await triggers(app, second) == ["enqueue"]
        gate.set()
        await second.result("60s")


async def test_what_is_due_already_is_not_overtaken(app: Keptwork) -> None:
    order: list[int] = []
    gate = asyncio.Event()

    @app.job()
    async def numbered(ctx: Context, n: int) -> None:
        order.append(n)
        await gate.wait()

    async with working(app, concurrency=2):
        await rests(app)
        jobs = [await numbered.enqueue(n=n) for n in range(8)]
        gate.set()
        for job in jobs:
            await job.result("60s")
    assert order == sorted(order)


async def test_a_paused_queue_a_key_a_delay_or_another_queue_go_the_usual_way(app: Keptwork) -> None:
    @app.job()
    async def quick(ctx: Context) -> None: ...

    async with working(app):
        await rests(app)
        await (await app.open()).set_queue_paused("default", True)
        jobs = [
            await quick.enqueue(),
            await quick.enqueue(_key="k"),
            await quick.enqueue(_run_in="1h"),
            await quick.enqueue(_queue="elsewhere"),
        ]
        assert [await triggers(app, job) for job in jobs] == [["enqueue"]] * 4


async def test_in_a_transaction_it_starts_only_when_that_has_committed(app: Keptwork) -> None:
    @app.job()
    async def quick(ctx: Context) -> None: ...

    async with working(app):
        await rests(app)
        async with app.transaction() as tx:
            job = await quick.enqueue(_tx=tx)
        await job.result("60s")
    assert await last(app, job) == ("succeed", None, None)


async def test_an_idle_worker_asks_no_more_than_it_must(app: Keptwork) -> None:
    """A claim that found fewer than were asked for says that nothing else is due; so does the poll, later on."""

    @app.job()
    async def quick(ctx: Context) -> None: ...

    async with working(app):
        await rests(app)
        for _ in range(20):
            await (await quick.enqueue()).result("60s")
    found = await counted(await app.open())
    assert found.total(metrics.CLAIM_CALLS, outcome="jobs") == 20
    assert found.total(metrics.CLAIM_CALLS, outcome="empty") < 15


@pytest.mark.acceptance
async def test_who_waits_for_a_job_that_runs_here_does_so_no_longer_than_told(app: Keptwork) -> None:
    going, gate = asyncio.Event(), asyncio.Event()

    @app.job()
    async def slow(ctx: Context) -> int:
        going.set()
        await gate.wait()
        return 7

    async with working(app):
        job = await slow.enqueue()
        await going.wait()
        began = time.monotonic()
        with pytest.raises(StillUnfinished):
            await job.result("1s")
        assert time.monotonic() - began < 1.9
        gate.set()
        assert await job.result("60s") == 7

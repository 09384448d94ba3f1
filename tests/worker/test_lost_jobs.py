"""Jobs that are cancelled, taken away or left behind while their handlers run."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from keptwork import Cancel, Keptwork
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from tests.conformance import stage
from tests.worker.scene import (
    eventually,
    last,
    moved,
    reaches,
    row,
    triggers,
    working,
)

ONCE = ["enqueue", "claim", "start"]


async def test_a_soft_cancel_is_seen_by_the_handler(app: Keptwork) -> None:
    started = asyncio.Event()

    @app.job()
    def patient(ctx: Context) -> Cancel:
        loop.call_soon_threadsafe(started.set)
        while not ctx.cancel_requested:
            time.sleep(0.005)
        return Cancel("asked to stop")

    loop = asyncio.get_running_loop()
    job = await patient.enqueue()
    async with working(app):
        await asyncio.wait_for(started.wait(), 60)
        assert await (await app.open()).request_stop(job.key, 1)
        await reaches(app, job, "cancelled")
    assert await last(app, job) == ("cancel", "asked to stop", None)


@pytest.mark.parametrize("kind", ["async", "swallows", "sync"])
async def test_a_soft_cancel_that_is_ignored_becomes_hard(app: Keptwork, kind: str) -> None:
    gate, thread = asyncio.Event(), threading.Event()

    async def ignores(ctx: Context) -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if kind == "async":
                raise
        return "finished all the same"

    def ignores_in_a_thread(ctx: Context) -> None:
        thread.wait()

    job = await app.job()(ignores_in_a_thread if kind == "sync" else ignores).enqueue()
    async with working(app, grace="200ms", concurrency=1):
        await reaches(app, job, "running")
        assert await (await app.open()).request_stop(job.key, 1)
        await reaches(app, job, "cancelled")
    thread.set()
    assert await last(app, job) == ("cancel", "it was asked to stop, and did not within 0.2 s", None)
    assert await triggers(app, job) == [*ONCE, "cancel"]


async def test_a_job_that_fails_after_it_was_asked_to_stop_is_not_tried_again(app: Keptwork) -> None:
    @app.job()
    async def breaks(ctx: Context) -> None:
        while not ctx.cancel_requested:  # noqa: ASYNC110 - the way to ask
            await asyncio.sleep(0.005)
        raise OSError("the other side is gone")

    job = await breaks.enqueue()
    async with working(app):
        await reaches(app, job, "running")
        assert await (await app.open()).request_stop(job.key, 1)
        await reaches(app, job, "cancelled")
    reason = "it was asked to stop, and ended with OSError: the other side is gone"
    assert await last(app, job) == ("cancel", reason, None)


async def test_a_job_asked_to_stop_is_cancelled_and_not_given_back_by_a_worker_that_drains(app: Keptwork) -> None:
    asked = asyncio.Event()

    @app.job()
    async def slow(ctx: Context) -> None:
        while True:
            await asyncio.sleep(0.005)
            if ctx.cancel_requested:
                asked.set()

    job = await slow.enqueue()
    async with working(app, grace="1s"):
        await reaches(app, job, "running")
        assert await (await app.open()).request_stop(job.key, 1)
        await asyncio.wait_for(asked.wait(), 60)
    assert (await triggers(app, job))[-1] == "cancel"


async def test_a_hard_cancel_stops_the_handler_and_its_late_result_changes_nothing(app: Keptwork) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.job()
    async def deaf(ctx: Context) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
        return "too late"

    @app.job()
    async def next_one(ctx: Context) -> int:
        task = asyncio.current_task()
        return task.cancelling() if task else -1

    job = await deaf.enqueue()
    async with working(app, concurrency=1) as work:
        await asyncio.wait_for(started.wait(), 60)
        await moved(await app.open(), JOB, job.key, "cancel", reason="operator")
        await asyncio.wait_for(stopped.wait(), 60)
        after = await next_one.enqueue()
        await reaches(app, after, "succeeded")
    assert work.result() == 1
    assert (await row(app, after))["result"] == "0"  # the slot is as good as new
    found = await row(app, job)
    assert (found["state"], found["result"]) == ("cancelled", None)
    assert await triggers(app, job) == [*ONCE, "cancel"]


async def test_a_lost_lease_stops_the_handler_and_the_job_is_done_by_the_next_claim(app: Keptwork) -> None:
    stopped: list[int] = []

    @app.job()
    async def first_hangs(ctx: Context) -> str:
        if ctx.attempt == 1 and not stopped:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(ctx.attempt)
        return "done"

    job = await first_hangs.enqueue()
    async with working(app, concurrency=1):
        await reaches(app, job, "running")
        await moved(await app.open(), JOB, job.key, "release")
        await reaches(app, job, "succeeded")
    assert stopped == [1]
    assert await triggers(app, job) == [*ONCE, "release", *ONCE[1:], "succeed"]


async def test_a_job_lost_before_it_began_is_never_begun(app: Keptwork) -> None:
    started, gate, begun = asyncio.Event(), asyncio.Event(), set()

    @app.job()
    async def work(ctx: Context, slow: bool = False) -> None:
        begun.add(ctx.job_id)
        if slow:
            started.set()
            await gate.wait()

    await app.enqueue_many(work, [{}] * 200)
    await work.enqueue(slow=True)
    ahead = await work.enqueue()
    async with working(app, concurrency=1):
        await asyncio.wait_for(started.wait(), 60)
        await reaches(app, ahead, "running")  # claimed ahead, still in the inbox
        await moved(await app.open(), JOB, ahead.key, "cancel")

        async def noticed() -> bool:
            return (ahead.key, 0) not in app._workers[0]._keeper._leases

        await eventually(noticed)
        gate.set()
    assert ahead.id not in begun
    assert await triggers(app, ahead) == [*ONCE, "cancel"]


async def test_the_job_of_a_worker_that_vanished_comes_back(app: Keptwork) -> None:
    @app.job()
    async def one(ctx: Context) -> int:
        return ctx.attempt

    job = await one.enqueue()
    store = await app.open()
    await stage.claim(store, await stage.worker(store), start=True, lease_us=300_000)
    async with working(app):
        await reaches(app, job, "succeeded")
    assert await triggers(app, job) == [*ONCE, "expire", *ONCE[1:], "succeed"]
    assert (await row(app, job))["result"] == "2"


async def test_a_job_that_kills_every_worker_ends_as_a_dead_letter(app: Keptwork) -> None:
    @app.job(max_attempts=1)
    async def poison(ctx: Context) -> None: ...

    job = await poison.enqueue()
    store = await app.open()
    await stage.claim(store, await stage.worker(store), start=True, lease_us=1)
    async with working(app):
        await reaches(app, job, "dead_lettered")
    assert await last(app, job) == ("dead_letter", "exhausted_retries", "exec")
    assert (await row(app, job))["error"] == "the lease of its worker ended in attempt 1 of 1"


@pytest.mark.acceptance
async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(app: Keptwork) -> None:
    @app.job(lease="1s")
    async def blocks(ctx: Context) -> str:
        time.sleep(2.2)  # noqa: ASYNC251 - the point of the test
        return "still mine"

    job = await blocks.enqueue()
    assert await app.work(until_idle=True) == 1
    assert await triggers(app, job) == [*ONCE, "succeed"]


async def test_a_kinds_own_lease_is_the_one_that_is_claimed(app: Keptwork) -> None:
    gate = asyncio.Event()

    @app.job(lease="40s")
    async def waits(ctx: Context) -> None:
        await gate.wait()

    job = await waits.enqueue()
    async with working(app):
        await reaches(app, job, "running")
        left = (await row(app, job))["lease_until"] - await (await app.open()).now()
        assert 35_000_000 < left <= 40_000_000
        gate.set()

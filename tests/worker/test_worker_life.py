"""A worker begins, drains and ends in good order, and its row says so."""

from __future__ import annotations

import asyncio
import threading

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.core.lifecycles import WORKER
from tests.conformance import stage
from tests.worker.scene import (
    eventually,
    last,
    move_worker,
    only_worker,
    reaches,
    row,
    state,
    worker_story,
    working,
)

ONCE = ["enqueue", "claim", "start"]


async def test_a_worker_that_worked_ends_completed(app: Keptwork) -> None:
    @app.job()
    async def one(ctx: Context) -> None: ...

    await one.enqueue()
    await app.work(until_idle=True, name="ann")
    id = await only_worker(app)
    assert await worker_story(app, id) == ["IDLE", "RUNNING", "COMPLETED"]
    assert (await stage.entity(await app.open(), WORKER, id))["name"] == "ann"


async def test_a_paused_worker_claims_nothing_until_it_is_resumed(app: Keptwork) -> None:
    @app.job()
    async def one(ctx: Context) -> None: ...

    first = await one.enqueue()
    async with working(app):
        await reaches(app, first, "succeeded")
        id = await only_worker(app)
        await move_worker(app, id, "pause")
        second = await one.enqueue()
        store = await app.open()
        assert await stage.claim(store, id) == []
        assert await state(app, second) == "queued"
        await move_worker(app, id, "resume")
        await reaches(app, second, "succeeded")
    assert await worker_story(app, id) == ["IDLE", "RUNNING", "PAUSED", "RUNNING", "COMPLETED"]


async def test_a_worker_stopped_while_paused_ends_terminated(app: Keptwork) -> None:
    @app.job()
    async def one(ctx: Context) -> None: ...

    job = await one.enqueue()
    async with working(app):
        await reaches(app, job, "succeeded")
        id = await only_worker(app)
        await move_worker(app, id, "pause")
    assert await worker_story(app, id) == ["IDLE", "RUNNING", "PAUSED", "TERMINATED"]


async def test_stop_lets_handlers_finish_and_gives_the_rest_back(app: Keptwork) -> None:
    started, gate = asyncio.Event(), asyncio.Event()
    quick = 200

    @app.job()
    async def work(ctx: Context, slow: bool = False) -> None:
        if slow:
            started.set()
            await gate.wait()

    await app.enqueue_many(work, [{}] * quick)
    slow = await work.enqueue(slow=True)
    rest = await app.enqueue_many(work, [{"slow": True}] * 300)
    async with working(app, concurrency=1) as task:
        await asyncio.wait_for(started.wait(), 60)

        async def looked_ahead() -> bool:
            return any([await state(app, job) == "running" for job in rest])

        await eventually(looked_ahead)
        app.stop()

        async def given_back() -> bool:
            return not any([await state(app, job) == "running" for job in rest])

        await eventually(given_back)
        assert not task.done()
        assert await state(app, slow) == "running"
        gate.set()
    assert task.result() == quick + 1
    assert await state(app, slow) == "succeeded"
    rows = [await row(app, job) for job in rest]
    assert {(found["state"], found["attempts"]) for found in rows} == {("queued", 0)}
    released = [job for job, found in zip(rest, rows, strict=True) if found["epoch"]]
    assert released
    assert await last(app, released[0]) == ("release", "worker drains", None)


async def test_after_the_grace_handlers_are_stopped_and_their_attempt_is_given_back(app: Keptwork) -> None:
    ended: list[str] = []
    both = asyncio.Event()

    @app.job()
    async def endless(ctx: Context) -> None:
        try:
            both.set()
            await asyncio.Event().wait()
        finally:
            ended.append(f"asked: {ctx.cancel_requested}")

    @app.job()
    def deaf(ctx: Context) -> None:
        thread.wait()

    thread = threading.Event()
    jobs = [await endless.enqueue(), await deaf.enqueue()]
    async with working(app, grace="100ms"):
        await asyncio.wait_for(both.wait(), 60)
        await reaches(app, jobs[1], "running")
    thread.set()
    assert ended == ["asked: True"]
    for job in jobs:
        found = await row(app, job)
        assert (found["state"], found["attempts"], found["epoch"]) == ("queued", 0, 1)


async def test_a_handler_that_will_not_be_stopped_does_not_hold_up_the_end(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.workers.worker.END_SECONDS", 0.2)
    started, gate = asyncio.Event(), asyncio.Event()

    @app.job(lease="1s")
    async def stubborn(ctx: Context) -> None:
        started.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    job = await stubborn.enqueue()
    async with working(app, grace="50ms"):
        await asyncio.wait_for(started.wait(), 60)
    assert await state(app, job) == "running"  # its lease will end
    gate.set()


async def test_worker_until_idle_runs_the_job_of_a_worker_that_died(app: Keptwork) -> None:
    @app.job()
    async def one(ctx: Context) -> int:
        return ctx.attempt

    job = await one.enqueue()
    store = await app.open()
    assert await stage.claim(store, await stage.worker(store), lease_us=500_000) != []
    await app.work(until_idle=True)
    assert await state(app, job) == "succeeded"


async def test_worker_until_idle_ends_when_the_worker_of_a_running_job_renews_its_lease(app: Keptwork) -> None:
    ended = asyncio.Event()

    @app.job(lease="3s")
    async def long(ctx: Context) -> None:
        await ended.wait()

    job = await long.enqueue()
    async with working(app):
        await reaches(app, job, "running")
        assert await app.work(until_idle=True) == 0
        assert await state(app, job) == "running"
        ended.set()
        await reaches(app, job, "succeeded")

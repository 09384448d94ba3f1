"""Each job has a task and a context of its own: nothing one handler does to them reaches the next, or its slot."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import json
import logging
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.core.lifecycles import WORKER
from keptwork.errors import LeaseLost
from keptwork.jobs import queries
from tests.worker.scene import eventually, last, only_worker, reaches, state, working

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


async def test_context_variable_of_one_job_is_unseen_by_the_next(app: Keptwork) -> None:
    @app.job()
    async def sets(ctx: Context, name: str) -> list[Any]:
        task = asyncio.current_task()
        assert task is not None
        seen = [tenant.get(), task.get_name(), decimal.getcontext().prec]
        tenant.set(name)
        task.set_name(f"task of {name}")
        decimal.getcontext().prec = 7
        return seen

    precision = decimal.getcontext().prec
    many = [await sets.enqueue(name=f"a{n}") for n in range(4)]
    await app.work(until_idle=True, concurrency=1)
    assert [await job.result("60s") for job in many] == [["nobody", "sets", precision]] * 4
    assert decimal.getcontext().prec == precision


async def test_context_variable_set_before_work_is_seen_by_every_job(app: Keptwork) -> None:
    @app.job()
    async def sees(ctx: Context) -> str:
        return tenant.get()

    @app.job()
    def sees_in_thread(ctx: Context) -> str:
        return tenant.get()

    place = tenant.set("from start-up")
    many = [await sees.enqueue(), await sees_in_thread.enqueue()]
    await app.work(until_idle=True, concurrency=1)
    tenant.reset(place)
    assert [await job.result("60s") for job in many] == ["from start-up"] * 2


async def test_watchdog_that_is_never_disarmed_harms_no_later_job(app: Keptwork) -> None:
    armed = asyncio.Event()

    @app.job()
    async def arms(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.05, task.cancel)
        asyncio.get_running_loop().call_later(0.06, armed.set)

    @app.job(max_attempts=1)
    async def innocent(ctx: Context) -> str:
        await armed.wait()
        await asyncio.sleep(0.02)
        return "done"

    first = [await arms.enqueue() for _ in range(2)]
    async with working(app, concurrency=2):
        for job in first:
            await job.result("60s")
        later = [await innocent.enqueue() for _ in range(4)]
        assert [await job.result("60s") for job in later] == ["done"] * 4


async def test_handler_that_cancels_itself_and_returns_keeps_its_result(app: Keptwork) -> None:
    @app.job(max_attempts=1)
    async def odd(ctx: Context) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "a result all the same"

    job = await odd.enqueue()
    await app.work(until_idle=True, concurrency=1)
    assert await job.result("60s") == "a result all the same"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_base_exception_of_a_handler_stays_in_its_job(app: Keptwork, error: type[BaseException]) -> None:
    @app.job(max_attempts=1)
    async def odd(ctx: Context) -> None:
        raise error

    @app.job()
    async def next_one(ctx: Context) -> str:
        return "done"

    ends, after = await odd.enqueue(), await next_one.enqueue()
    await app.work(until_idle=True, concurrency=1)
    assert (await last(app, ends))[0] == "dead_letter"
    assert await after.result("60s") == "done"


async def test_slot_that_dies_is_replaced_logged_and_shown(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keptwork.workers.heartbeat.BEAT_SECONDS", 0.05)

    @app.job(max_attempts=1)
    async def cancels_slots(ctx: Context) -> None:
        for task in asyncio.all_tasks():
            if "Slot._run" in repr(task):
                task.cancel()
        await asyncio.sleep(0)

    @app.job()
    async def next_one(ctx: Context) -> str:
        return "done"

    with caplog.at_level(logging.ERROR, "keptwork"):
        async with working(app, concurrency=3):
            await reaches(app, await cancels_slots.enqueue(), "dead_lettered")
            many = [await next_one.enqueue() for _ in range(6)]
            assert [await job.result("60s") for job in many] == ["done"] * 6
            worker = await only_worker(app)

            async def shown() -> bool:
                told = await (await app.open()).telemetry(WORKER, worker, 1, limit=1)
                return bool(told) and json.loads(told[0].payload)["slots_replaced"] >= 2

            await eventually(shown)
    assert "a slot of this worker was lost and is replaced" in caplog.text


async def test_task_left_running_lives_on_and_gets_lease_lost(app: Keptwork) -> None:
    told: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    @app.job()
    async def leaves(ctx: Context) -> None:
        async def later() -> None:
            await ended.wait()
            calls = (lambda: ctx.step("late", str), lambda: ctx.sleep("1s"), lambda: ctx.keep("late", b"x"))
            found = []
            for call in calls:
                try:
                    await call()
                except LeaseLost as lost:
                    found.append(type(lost).__name__)
            told.set_result(found)

        tasks.append(asyncio.create_task(later()))

    tasks: list[asyncio.Task[None]] = []
    job = await leaves.enqueue()
    async with working(app, concurrency=1):
        await job.result("60s")
        ended.set()
        assert await asyncio.wait_for(told, 60) == ["LeaseLost"] * 3
    assert await state(app, job) == "succeeded"


async def test_stop_reaches_the_task_of_the_job_alone(app: Keptwork) -> None:
    begun, cut = asyncio.Event(), []

    @app.job(max_attempts=2)
    async def waits(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cut.append(asyncio.current_task())
            raise

    @app.job()
    async def next_one(ctx: Context) -> int:
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    job = await waits.enqueue()
    async with working(app, concurrency=1, grace="50ms"):
        await asyncio.wait_for(begun.wait(), 60)
        await queries.cancel(await app.open(), 1, job.id)
        await reaches(app, job, "cancelled")
        after = await next_one.enqueue()
        assert await after.result("60s") == 0
    assert len(cut) == 1

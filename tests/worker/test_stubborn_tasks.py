"""Async handlers that swallow their cancellation: the job settles, the slot is free, and the worker is replaced."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.errors import LeaseLost, WorkerExhausted
from keptwork.job import DeclaredJob
from keptwork.jobs import queries
from tests.support.command import environment
from tests.worker.scene import eventually, last, reaches, row, state, working


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keptwork.workers.slot.END_SECONDS", 0.05)


@pytest.fixture
async def gate() -> AsyncIterator[asyncio.Event]:
    """Lets every handler end, whatever became of the test."""
    made = asyncio.Event()
    yield made
    made.set()
    await asyncio.sleep(0)


class Stage:
    """A handler that swallows every cancellation until `gate` opens, and one that works."""

    def __init__(self, app: Keptwork, gate: asyncio.Event, timeout: str | None = None) -> None:
        self.gate = gate
        self.ended: list[str] = []
        self.sticks: DeclaredJob = app.job(name="sticks", timeout=timeout, max_attempts=1)(self._stick)
        self.works: DeclaredJob = app.job(name="works")(self._work)

    async def _stick(self, ctx: Context) -> None:
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue
        try:
            await ctx.step("late", lambda: None)
        except LeaseLost:
            self.ended.append("refused")

    async def _work(self, ctx: Context) -> None: ...


async def test_a_job_whose_handler_ignores_its_time_out_settles_and_its_slot_is_free(
    app: Keptwork, gate: asyncio.Event
) -> None:
    stage = Stage(app, gate, timeout="20ms")
    async with working(app, concurrency=4):
        stuck = await stage.sticks.enqueue()
        await reaches(app, stuck, "dead_lettered")
        assert await last(app, stuck) == ("dead_letter", "timeout", "exec")
        error = (await row(app, stuck))["error"]
        assert error == "TimeoutError: it took longer than 0.02 s, and ignores its cancellation"
        after = [await stage.works.enqueue() for _ in range(4)]
        for job in after:
            await reaches(app, job, "succeeded")
        stage.gate.set()

        async def refused() -> bool:
            return stage.ended == ["refused"]

        await eventually(refused)


async def test_a_job_that_is_cancelled_while_its_handler_ignores_it_is_cancelled(
    app: Keptwork, gate: asyncio.Event
) -> None:
    stage = Stage(app, gate)
    async with working(app, concurrency=4, grace="20ms"):
        job = await stage.sticks.enqueue()
        await reaches(app, job, "running")
        await queries.cancel(await app.open(), 1, job.id)
        await reaches(app, job, "cancelled")
        stage.gate.set()


async def test_a_worker_that_has_lost_half_its_slots_to_tasks_ends_to_be_replaced(
    app: Keptwork, gate: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(app, gate, timeout="20ms")
    work = asyncio.create_task(app.work(concurrency=4))
    await app.enqueue_many(stage.sticks, [{}] * 2)
    with pytest.raises(WorkerExhausted, match="2 handlers do not end"):
        await asyncio.wait_for(work, 60)
    assert "2 handlers do not end and cannot be ended: this worker drains and ends" in caplog.text
    stage.gate.set()
    after = await stage.works.enqueue()
    assert await app.work(until_idle=True) == 1
    assert await state(app, after) == "succeeded"


async def test_tasks_that_ended_after_all_do_not_count_against_the_worker(app: Keptwork, gate: asyncio.Event) -> None:
    stage = Stage(app, gate, timeout="20ms")
    async with working(app, concurrency=4):
        for _ in range(3):
            stage.gate.clear()
            stuck = await stage.sticks.enqueue()
            await reaches(app, stuck, "dead_lettered")
            stage.gate.set()
            before = len(stage.ended)

            async def one_more(before: int = before) -> bool:
                return len(stage.ended) > before or before >= 3

            await eventually(one_more)


async def test_a_stopped_worker_gives_back_the_job_of_a_handler_that_ignores_it(
    app: Keptwork, gate: asyncio.Event
) -> None:
    stage = Stage(app, gate)
    async with working(app, concurrency=4, grace="20ms"):
        job = await stage.sticks.enqueue()
        await reaches(app, job, "running")
        await asyncio.sleep(0)
    assert await state(app, job) == "queued"
    assert (await row(app, job))["attempts"] == 0
    stage.gate.set()


@pytest.mark.acceptance
def test_a_task_that_does_not_end_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    code = f"""
        import asyncio
        from keptwork import Keptwork
        import keptwork.workers.slot
        keptwork.workers.slot.END_SECONDS = 0.05

        app = Keptwork("sqlite:///{tmp_path}/keptwork.db")

        @app.job(timeout="20ms", max_attempts=1)
        async def sticks(ctx):
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass

        async def main():
            async with app:
                await sticks.enqueue()
                print(await app.work(until_idle=True))

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr

"""Threads that cannot be ended: their slots go on, and a worker with too many of them ends to be replaced."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.errors import WorkerExhausted
from keptwork.job import DeclaredJob
from keptwork.workers.handlers import Threads
from tests.support.command import environment
from tests.worker.scene import last, reaches, state


async def test_threads_are_used_again_and_no_more_are_made_than_are_needed() -> None:
    threads = Threads(lambda: None)
    barrier = threading.Barrier(3)

    def meet() -> str:
        barrier.wait(60)
        return threading.current_thread().name

    names: set[str] = set()
    for _ in range(20):
        names.update(await asyncio.gather(*(threads.call(meet) for _ in range(3))))
    threads.stop()
    assert len(names) == 3


def declare(app: Keptwork) -> tuple[threading.Event, DeclaredJob, DeclaredJob]:
    """A handler that is given up but does not end before the gate opens, and one that works."""
    gate = threading.Event()

    @app.job(timeout="20ms", max_attempts=1)
    def sticks(ctx: Context) -> None:
        gate.wait()

    @app.job()
    def works(ctx: Context) -> None: ...

    return gate, sticks, works


@pytest.mark.acceptance
async def test_stuck_threads_do_not_starve_the_slots_and_end_the_worker_when_there_are_too_many(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keptwork.workers.handlers.STUCK_SECONDS", 0.05)
    gate, sticks, works = declare(app)
    work = asyncio.create_task(app.work(concurrency=2))
    first = await sticks.enqueue()
    await reaches(app, first, "dead_lettered")
    assert await last(app, first) == ("dead_letter", "timeout", "exec")
    with pytest.raises(WorkerExhausted, match="1 handlers do not end"):
        await asyncio.wait_for(work, 60)  # one of two is half
    gate.set()
    assert "1 handlers do not end and cannot be ended: this worker drains and ends" in caplog.text
    after = await works.enqueue()
    assert await app.work(until_idle=True, concurrency=2) == 1
    assert await state(app, after) == "succeeded"


async def test_with_all_threads_stuck_the_next_job_is_still_done(app: Keptwork) -> None:
    gate, sticks, works = declare(app)
    many = await app.enqueue_many(sticks, [{}] * 4)
    after = await works.enqueue()
    await app.work(until_idle=True, concurrency=2)
    gate.set()
    assert {await state(app, job) for job in many} == {"dead_lettered"}
    assert await state(app, after) == "succeeded"


@pytest.mark.acceptance
def test_a_stuck_thread_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    code = f"""
        import asyncio, threading
        from keptwork import Keptwork

        app = Keptwork("sqlite:///{tmp_path}/keptwork.db")

        @app.job(timeout="20ms", max_attempts=1)
        def sticks(ctx):
            threading.Event().wait()

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
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr

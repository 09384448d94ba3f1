"""Handlers that block the event loop: who does it is logged while it happens, and what they return is kept."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.cli.jobs import _facts
from keptwork.context import Context
from keptwork.jobs import queries
from keptwork.workers.blocked_loop import Stall
from tests.conformance.stage import eventually
from tests.worker.scene import last, row, state, story

pytestmark = pytest.mark.acceptance


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keptwork.workers.blocked_loop.FIRST_SECONDS", 0.1)
    monkeypatch.setattr("keptwork.workers.blocked_loop.EVERY_SECONDS", 0.02)
    monkeypatch.setattr("keptwork.workers.lease_renewer.LONGEST_NAP", 0.05)


def said_of(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if getattr(one, "keptwork", {}).get("event") == event]


def waited_for(seen: Callable[[], object]) -> None:
    """Block the calling thread until it is so."""
    ends = time.monotonic() + 30
    while not seen() and time.monotonic() < ends:
        time.sleep(0.01)


async def test_who_blocks_the_event_loop_is_logged_while_it_does(
    app: Keptwork, caplog: pytest.LogCaptureFixture
) -> None:
    seen_meanwhile: list[int] = []

    @app.job()
    async def hogs(ctx: Context) -> None:
        await asyncio.sleep(0.05)
        waited_for(lambda: said_of(caplog, "blocked"))
        seen_meanwhile.append(len(said_of(caplog, "blocked")))

    @app.job()
    async def beside(ctx: Context) -> None:
        await asyncio.sleep(0.3)

    hog, _ = await hogs.enqueue(), await beside.enqueue()
    await app.work(until_idle=True, concurrency=2)
    assert seen_meanwhile[0] >= 1, "nothing was logged while the loop was blocked"
    record = said_of(caplog, "blocked")[0]
    assert record.getMessage().startswith(f"hogs ({hog.id}) has blocked the event loop for 0.")
    assert ", in hogs\n" in str(record.exc_text), "the log does not show where"
    assert "src/keptwork/" not in str(record.exc_text)
    assert "the event loop continues after" in caplog.text


async def test_a_task_of_a_handler_that_blocks_the_loop_is_laid_on_its_job(
    app: Keptwork, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job()
    async def hogs(ctx: Context) -> None:
        async def child() -> None:
            waited_for(lambda: said_of(caplog, "blocked"))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child())

    @app.job()
    async def beside(ctx: Context) -> None:
        await asyncio.sleep(0.2)

    hog, other = await hogs.enqueue(), await beside.enqueue()
    await app.work(until_idle=True, concurrency=2)
    named = said_of(caplog, "blocked")[0].getMessage()
    assert hog.id in named
    assert sys.version_info < (3, 12) or other.id not in named


async def test_a_handler_that_returns_after_its_time_out_keeps_its_result_and_it_is_said_why(
    app: Keptwork, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(timeout="20ms", max_attempts=2)
    async def charge(ctx: Context) -> str:
        time.sleep(0.2)  # noqa: ASYNC251 - that is what is tested
        return "paid"

    job = await charge.enqueue()
    await app.work(until_idle=True)
    assert json.loads((await row(app, job))["result"]) == "paid"
    assert [event.trigger for event in await story(app, job)] == ["enqueue", "claim", "start", "succeed"]
    wanted = "s, over its timeout of 0.02 s: it blocked the event loop"
    assert wanted in caplog.text
    shown = await queries.show(await app.open(), 1, job.id)
    assert shown.overrun is not None
    assert shown.overrun.startswith("took 0.")
    assert shown.overrun.endswith(wanted)
    assert ("overrun", shown.overrun) in list(_facts(shown, _as_shown(shown), 0))


def _as_shown(shown: queries.Story) -> dict[str, Any]:
    from keptwork.cli.jobs import _shown

    return _shown(shown)


@pytest.mark.parametrize("pause", [0.0, 30.0])
async def test_a_handler_that_awaits_again_after_its_time_out_is_timed_out_there(app: Keptwork, pause: float) -> None:
    passed: list[str] = []

    @app.job(timeout="20ms", max_attempts=1)
    async def charge(ctx: Context) -> None:
        time.sleep(0.1)  # noqa: ASYNC251 - that is what is tested
        passed.append("before")
        await asyncio.sleep(pause)
        passed.append("after")

    job = await charge.enqueue()
    await app.work(until_idle=True)
    assert passed == ["before"]
    assert await last(app, job) == ("dead_letter", "timeout", "exec")


async def test_a_job_that_another_one_has_delayed_is_not_blamed_for_it(
    app: Keptwork, caplog: pytest.LogCaptureFixture
) -> None:
    begun, gate = threading.Event(), threading.Event()

    @app.job()
    async def hogs(ctx: Context) -> None:
        await asyncio.to_thread(begun.wait, 30)
        gate.set()
        time.sleep(0.6)  # noqa: ASYNC251 - that is what is tested

    @app.job(timeout="500ms", max_attempts=1)
    def works(ctx: Context) -> str:
        begun.set()
        gate.wait(60)
        return "done"

    hog, job = await hogs.enqueue(), await works.enqueue()
    await app.work(until_idle=True, concurrency=2)
    assert (await state(app, hog), await state(app, job)) == ("succeeded", "succeeded")
    told = (await queries.show(await app.open(), 1, job.id)).overrun
    assert str(told).endswith("another job blocked the event loop")


async def test_a_handler_that_ignores_its_time_out_and_returns_keeps_its_result(app: Keptwork) -> None:
    @app.job(timeout="20ms", max_attempts=1)
    async def stubborn(ctx: Context) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return "done"

    job = await stubborn.enqueue()
    await app.work(until_idle=True)
    assert await state(app, job) == "succeeded"
    told = (await queries.show(await app.open(), 1, job.id)).overrun
    assert told is not None
    assert told.endswith("it ignored its cancellation")


async def test_a_time_out_of_the_handlers_own_is_still_its_own(app: Keptwork) -> None:
    @app.job(timeout="30s", max_attempts=1)
    async def waits(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            return "went on"
        return "never"

    job = await waits.enqueue()
    await app.work(until_idle=True)
    assert json.loads((await row(app, job))["result"]) == "went on"


async def test_a_loop_that_turns_is_never_reported(caplog: pytest.LogCaptureFixture) -> None:
    stall = Stall(asyncio.get_running_loop(), dict)
    for _ in range(30):
        await asyncio.to_thread(stall.look)
        await asyncio.sleep(0.01)
    assert not said_of(caplog, "blocked")


async def test_a_process_that_was_stopped_and_continues_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 100.0
    stall = Stall(asyncio.get_running_loop(), dict, lambda: now)
    stall.look()
    now += 3_600
    stall.look()  # the first thread to run again
    await asyncio.sleep(0)
    assert not said_of(caplog, "blocked")
    stall.look()
    now += 10
    stall.look()
    stall.look()

    async def reported() -> bool:
        return bool(said_of(caplog, "blocked"))

    await eventually(reported)

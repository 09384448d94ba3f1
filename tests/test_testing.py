"""What users test their applications with: a clock, drained queues, assertions, and processes that die at a step."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import unittest
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from keptwork import Cancel, Keptwork, PermanentError, Snooze
from keptwork.errors import BadInput
from keptwork.job import DeclaredJob
from keptwork.testing import Harness, Settled

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def app() -> Keptwork:
    return Keptwork("sqlite:///nobody-opens-this.db")


@pytest.fixture
async def harness(app: Keptwork) -> AsyncIterator[Harness]:
    async with Harness(app) as opened:
        yield opened


def told(settled: list[Settled]) -> list[tuple[str, str]]:
    return [(run.kind, run.move) for run in settled]


async def test_a_drain_runs_what_is_due_and_tells_what_came_of_it(app, harness):
    @app.job()
    async def add(ctx, a, b):
        return {"sum": a + b}

    @app.job()
    async def refuse(ctx):
        raise PermanentError("never")

    handle = await add.enqueue(a=1, b=2)
    await refuse.enqueue()
    done, failed = await harness.drain()
    assert (done.kind, done.move, done.state, done.result) == ("add", "succeed", "succeeded", {"sum": 3})
    assert (failed.kind, failed.move, failed.reason) == ("refuse", "fail", "PermanentError: never")
    assert done.id == handle.id
    assert await handle.result() == {"sum": 3}
    assert await harness.drain() == []


async def test_jobs_that_a_job_enqueues_are_drained_with_it_in_any_queue(app, harness):
    @app.job()
    async def child(ctx): ...

    @app.job()
    async def parent(ctx):
        await child.enqueue(_queue="nursery")

    await parent.enqueue()
    assert told(await harness.drain()) == [("parent", "succeed"), ("child", "succeed")]
    await harness.assert_enqueued(child, count=1, queue="nursery")


async def test_a_large_result_is_whole(app, harness):
    @app.job()
    def large(ctx):
        return "x" * 100_000

    await large.enqueue()
    (done,) = await harness.drain()
    assert done.result == "x" * 100_000


# --- time


async def test_time_stands_still_unless_it_is_moved(app, harness):
    @app.job()
    async def later(ctx): ...

    await later.enqueue(_run_in="5m")
    assert await harness.drain() == []
    harness.advance("4m59s")
    assert await harness.drain() == []
    harness.advance("1s")
    assert told(await harness.drain()) == [("later", "succeed")]
    assert harness.now == BEGINNING + timedelta(minutes=5)


async def test_days_pass_in_no_time_and_stop_where_they_were_told_to(app, harness):
    @app.job()
    async def patient(ctx):
        await ctx.sleep("3d")
        await ctx.sleep("4d")

    await patient.enqueue()
    began = time.monotonic()
    assert told(await harness.drain(within="6d")) == [("patient", "snooze"), ("patient", "snooze")]
    assert harness.now == BEGINNING + timedelta(days=6)
    assert told(await harness.drain(within="2d")) == [("patient", "succeed")]
    assert time.monotonic() - began < 60


async def test_backoffs_are_as_long_as_they_can_be(app, harness):
    runs: list[datetime] = []

    @app.job(max_attempts=4, backoff="10s", backoff_cap="30s")
    async def failing(ctx):
        runs.append(harness.now)
        raise ValueError("again")

    await failing.enqueue()
    settled = await harness.drain(within="1h")
    assert [run.move for run in settled] == ["retry", "retry", "retry", "dead_letter"]
    assert [(run - BEGINNING).total_seconds() for run in runs] == [0, 10, 30, 60]


async def test_snoozes_and_cancels_follow_the_clock(app, harness):
    @app.job()
    async def often(ctx):
        return Snooze("10m") if harness.now < BEGINNING + timedelta(minutes=25) else Cancel("enough")

    await often.enqueue()
    assert [run.move for run in await harness.drain(within="1h")] == ["snooze"] * 3 + ["cancel"]


async def test_schedules_follow_the_clock(app):
    ticks: list[datetime] = []

    @app.schedule("0 9 * * *", tz="Europe/Berlin")
    @app.schedule(every="10h", name="often")
    @app.job()
    async def report(ctx):
        ticks.append(ctx.scheduled_at)

    async with Harness(app, start="2026-03-28T00:00:00Z") as harness:
        await harness.drain(within="2d")
        assert sum(tick.hour == 8 for tick in ticks) == 1
        assert datetime(2026, 3, 29, 7, tzinfo=UTC) in ticks
        assert len(ticks) == 2 + 4
        harness.advance("2d")  # nobody was there: the latest of each is fired
        assert len(await harness.drain()) == 2


async def test_what_waits_in_a_paused_queue_does_not_stop_the_clock(app, harness):
    @app.job()
    async def never(ctx): ...

    await never.enqueue()
    await (await app.open()).set_queue_paused("default", True)
    assert await harness.drain(within="1d") == []
    assert harness.now == BEGINNING + timedelta(days=1)


# --- processes that die


def flow_of(app: Keptwork, ran: list[str], *, ordinary: bool) -> DeclaredJob:
    def do(name: str) -> str:
        ran.append(name)
        return name

    async def do_async(name: str) -> str:
        return do(name)

    @app.job(name="ordinary", lease="30s")
    def in_thread(ctx: Any) -> list[str]:
        return [ctx.step(name, do, name) for name in ("get", "charge", "send")]

    @app.job(name="async", lease="30s")
    async def in_loop(ctx: Any) -> list[str]:
        return [
            await ctx.step("get", do, "get"),
            await ctx.step("charge", do_async, "charge"),
            await ctx.step("send", lambda: do_async("send")),
        ]

    return in_thread if ordinary else in_loop


@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize(
    ("when", "first", "then"),
    [
        ("before", ["get"], ["charge", "send"]),
        ("unkept", ["get", "charge"], ["charge", "send"]),
        ("after", ["get", "charge"], ["send"]),
    ],
)
async def test_a_process_that_dies_at_a_step_is_followed_by_another_when_its_lease_is_over(
    app, harness, ordinary, when, first, then
):
    ran: list[str] = []
    flow = flow_of(app, ran, ordinary=ordinary)
    harness.crash_at("charge", when)
    job = await flow.enqueue()
    assert await harness.drain() == []
    assert ran == first
    harness.advance("29s")
    assert await harness.drain() == []
    settled = await harness.drain(within="2s")
    assert [run.move for run in settled] == ["expire", "succeed"]
    assert ran == first + then
    assert await job.result() == ["get", "charge", "send"]


async def test_a_crash_is_that_of_the_next_run_of_that_job_and_each_is_one(app, harness):
    ran: list[str] = []
    flow = flow_of(app, ran, ordinary=False)
    for _ in range(2):
        harness.crash_at("send", "unkept", job="async")
    await flow.enqueue()
    settled = await harness.drain(within="5m")
    assert [run.move for run in settled] == ["expire", "expire", "succeed"]
    assert ran == ["get", "charge", "send", "send", "send"]


async def test_a_crash_does_not_touch_the_others_and_no_code_catches_it(app, harness):
    @app.job()
    async def careful(ctx):
        try:
            await ctx.step("pay", lambda: 1)
        except Exception:
            return "caught"
        return "paid"

    @app.job()
    async def other(ctx): ...

    harness.crash_at("pay", "before", job=careful)
    await careful.enqueue()
    await other.enqueue()
    assert told(await harness.drain()) == [("other", "succeed")]
    assert [run.result for run in await harness.drain(within="5m")] == [None, "paid"]


async def test_a_result_that_was_kept_is_not_noted_as_made_by_other_code(app, harness):
    """The function that crashes is the user's own, in disguise."""
    flow = flow_of(app, [], ordinary=False)
    harness.crash_at("charge", "after")
    job = await flow.enqueue()
    await harness.drain(within="5m")
    kept = await (await app.open()).checkpoints(1, job.key)
    assert [one.name for one in kept if one.changed_at is not None] == []


async def test_a_crash_that_did_not_happen_is_an_error(app):
    flow = flow_of(app, [], ordinary=False)
    harness = await Harness(app).__aenter__()
    harness.crash_at("chrage")
    await flow.enqueue()
    await harness.drain()
    with pytest.raises(AssertionError, match=r"nothing crashed at 'chrage' \(after\): no such step was reached"):
        await harness.__aexit__(None)
    with pytest.raises(BadInput, match="not 'soon'"):
        Harness(app).crash_at("charge", "soon")  # type: ignore[arg-type]  # wrong on purpose


# --- looking


async def test_assertions_find_what_was_enqueued(app, harness):
    @app.job()
    async def mail(ctx, to, tags=()): ...

    await mail.enqueue(to="ann", tags=("a", "b"), _run_in="5m", _key="k-1")
    await mail.enqueue(to="bob", _queue="slow")
    assert len(await harness.assert_enqueued(mail)) == 2
    (ann,) = await harness.assert_enqueued("mail", count=1, arguments={"tags": ("a", "b")}, run_in="5m", key="k-1")
    assert (ann.arguments["to"], ann.run_in) == ("ann", 300)
    await harness.assert_enqueued(mail, arguments={"to": "bob"}, queue="slow", run_in=0)
    await harness.assert_not_enqueued(mail, arguments={"to": "eve"})
    await harness.assert_not_enqueued("no such kind")


async def test_an_assertion_that_fails_says_what_there_is(app, harness):
    @app.job()
    async def mail(ctx, to): ...

    await mail.enqueue(to="ann", _run_in="5m")
    with pytest.raises(AssertionError) as failed:
        await harness.assert_enqueued(mail, arguments={"to": "bob"}, queue="slow")
    assert str(failed.value) == (
        "expected at least one of mail(to='bob') in slow, found 0; of that kind there are:\n"
        "  mail(to='ann') in default, due in 300 s"
    )
    with pytest.raises(AssertionError, match=r"expected 0 of mail\(\), found 1"):
        await harness.assert_not_enqueued(mail)
    with pytest.raises(AssertionError, match="found 1"):
        await harness.assert_enqueued(mail, count=2)


# --- around


async def test_the_application_is_afterwards_as_it_was_before(app, tmp_path):
    app.url = f"sqlite:///{tmp_path}/real.db"

    @app.job()
    async def greet(ctx): ...

    async with Harness(app) as harness:
        await greet.enqueue()
        assert len(await harness.drain()) == 1
    async with app:
        assert await (await app.open()).jobs() == []
        assert (tmp_path / "real.db").exists()
        with pytest.raises(BadInput, match="close it before it is given another"):
            async with Harness(app):
                pass


async def test_each_test_begins_with_an_empty_database(app):
    @app.job()
    async def greet(ctx): ...

    for _ in range(2):
        async with Harness(app) as harness:
            await greet.enqueue()
            await harness.assert_enqueued(greet, count=1)


@pytest.fixture
def isolated_app() -> Keptwork:
    app = Keptwork()
    app.job(name="isolated", isolation="process", memory="64MB")(_seen_by)
    return app


def _seen_by(ctx: Any) -> int:
    SEEN.append(ctx.attempt)
    return len(SEEN)


SEEN: list[int] = []


async def test_isolated_handlers_run_in_the_test_process(isolated_app):
    async with Harness(isolated_app) as harness:
        await DeclaredJob(isolated_app, isolated_app.kinds["isolated"]).enqueue()
        await harness.drain()
    assert SEEN == [1]


async def test_handlers_may_wait_for_one_another_if_there_is_room_for_them(app, harness):
    ready = asyncio.Event()

    @app.job()
    async def first(ctx):
        await ready.wait()

    @app.job()
    async def second(ctx):
        ready.set()

    await first.enqueue()
    await second.enqueue()
    assert len(await harness.drain(concurrency=2)) == 2


def test_plain_unittest_works_too():
    app = Keptwork()

    @app.job()
    async def greet(ctx):
        return "hello"

    class Case(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self) -> None:
            self.harness = await self.enterAsyncContext(Harness(app))

        async def test_greeting(self) -> None:
            await greet.enqueue()
            assert [run.result for run in await self.harness.drain()] == ["hello"]

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


@pytest.mark.acceptance
def test_applications_do_not_pay_for_it():
    shown = "'keptwork.testing' in sys.modules, 'cronsim' in sys.modules"
    program = f"import sys, keptwork.app, keptwork.cli.main; print({shown})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"

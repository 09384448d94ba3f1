"""Durable steps: what has been done is not done again, and what is waited for holds nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keptwork import JobFailed, Keptwork, LeaseLost, PermanentError
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.jobs.outcome import LARGEST_IN_ROW
from keptwork.store.contract.checkpoints import Checkpoint
from tests.conformance.by_hand import hand_on
from tests.process import step_jobs
from tests.worker.scene import eventually, last, moved, reaches, row, triggers, working

FAST: dict[str, Any] = {"backoff": "1ms"}


async def kept(app: Keptwork, key: int) -> dict[str, Checkpoint]:
    return {one.name: one for one in await (await app.open()).checkpoints(1, key)}


async def test_a_retry_starts_after_the_last_checkpoint(app: Keptwork) -> None:
    ran: list[str] = []

    def noted(what: str) -> str:
        ran.append(what)
        return what.upper()

    @app.job(**FAST)
    async def three(ctx: Context) -> list[str]:
        results = [await ctx.step("one", noted, "one"), await ctx.step("two", noted, what="two")]
        if ctx.attempt == 1:
            raise RuntimeError("again")
        return [*results, await ctx.step("three", noted, "three")]

    job = await three.enqueue()
    async with working(app):
        assert await job.result("60s") == ["ONE", "TWO", "THREE"]
    assert ran == ["one", "two", "three"]
    found = await kept(app, job.key)
    assert [(one.name, one.result, one.epoch) for one in found.values()] == [
        ("one", '"ONE"', 0),
        ("two", '"TWO"', 0),
        ("three", '"THREE"', 1),
    ]


async def test_a_handler_in_a_thread_calls_its_steps(app: Keptwork) -> None:
    ran: list[str] = []

    async def awaited(what: str) -> str:
        await asyncio.sleep(0)
        return what

    @app.job(**FAST)
    def two(ctx: Context) -> list[str]:
        results = [ctx.step("plain", ran.append, "plain"), ctx.step("async", awaited, "async")]
        if ctx.attempt == 1:
            raise RuntimeError("again")
        return results

    job = await two.enqueue()
    async with working(app):
        assert await job.result("60s") == [None, "async"]
    assert ran == ["plain"]


async def test_steps_of_tasks_that_run_together_are_all_kept(app: Keptwork) -> None:
    ran: list[int] = []

    async def one(n: int) -> int:
        ran.append(n)
        return n

    @app.job(**FAST)
    async def many(ctx: Context) -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(f"part {n}", one, n)) for n in range(20)]
        if ctx.attempt == 1:
            raise RuntimeError("again")
        return [task.result() for task in tasks]

    job = await many.enqueue()
    async with working(app):
        assert await job.result("60s") == list(range(20))
    assert sorted(ran) == list(range(20))


async def test_a_wait_inside_a_task_group_leaves_the_slot_too(app: Keptwork) -> None:
    @app.job()
    async def waits(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("50ms"))
            done = group.create_task(ctx.step("beside", str, "x"))
        return str(done.result())

    job = await waits.enqueue()
    async with working(app):
        assert await job.result("60s") == "x"
    assert await triggers(app, job) == ["enqueue", "claim", "start", "snooze", "claim", "start", "succeed"]


async def test_two_steps_of_one_name_are_refused(app: Keptwork) -> None:
    @app.job()
    async def twice(ctx: Context) -> None:
        await ctx.step("get", str)
        await ctx.step("get", str)

    job = await twice.enqueue()
    await app.work(until_idle=True)
    said = "PermanentError: two steps of one job are called 'get'; each needs a name of its own"
    assert await last(app, job) == ("fail", said, "exec")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is no step; it must be printable text"),
        ("a\nb", "is no step; it must be printable text"),
        ("x" * 501, "a step of 501 characters is over the limit of 500"),
        ("#sleep 1", "names that begin with # are kept for waits"),
        (5, "is no step"),
    ],
)
async def test_a_name_that_will_not_do_is_refused_in_a_line(name: Any, said: str) -> None:
    async with Keptwork("sqlite:///:memory:") as app:

        @app.job()
        async def wrong(ctx: Context) -> None:
            await ctx.step(name, str)

        job = await wrong.enqueue()
        await app.work(until_idle=True)
        with pytest.raises(JobFailed, match=said):
            await job.result()


@pytest.mark.parametrize("value", [object(), float("nan"), {1: {2}}, "x" * (17 << 20)])
async def test_what_json_cannot_hold_is_refused_and_the_step_is_named(value: Any) -> None:
    async with Keptwork("sqlite:///:memory:") as app:

        @app.job()
        async def wrong(ctx: Context) -> None:
            with pytest.raises(PermanentError, match="the step 'get' returned what cannot be kept: "):
                await ctx.step("get", lambda: value)

        job = await wrong.enqueue()
        await app.work(until_idle=True)
        assert await job.result() is None
        assert await kept(app, job.key) == {}


async def test_a_step_returns_the_same_the_first_time_and_later(app: Keptwork) -> None:
    """A tuple is a list for JSON, and it is one from the beginning."""
    seen: list[Any] = []

    @app.job(**FAST)
    async def pair(ctx: Context) -> None:
        seen.append(await ctx.step("pair", lambda: (1, {"a": None})))
        if ctx.attempt == 1:
            raise RuntimeError("again")

    job = await pair.enqueue()
    async with working(app):
        await job.result("60s")
    assert seen == [[1, {"a": None}]] * 2


async def test_large_results_are_kept_apart_and_returned_whole(app: Keptwork) -> None:
    seen: list[int] = []
    sizes = (LARGEST_IN_ROW - 2, LARGEST_IN_ROW - 1, 1 << 20)

    @app.job(**FAST)
    async def large(ctx: Context) -> None:
        for size in sizes:
            seen.append(len(await ctx.step(f"get {size}", lambda size=size: "x" * size)))
        if ctx.attempt == 1:
            raise RuntimeError("again")

    job = await large.enqueue()
    async with working(app):
        await job.result("60s")
    assert seen == [*sizes, *sizes]
    assert [one.hash is not None for one in (await kept(app, job.key)).values()] == [False, True, True]
    assert await (await app.open()).drop_unused_blobs(1 << 60, 10) == 0


async def test_a_result_that_is_gone_from_the_database_ends_the_attempt(app: Keptwork, database_url: str) -> None:
    """It is not waited for: nobody will bring it back."""
    hand = await hand_on(database_url)

    @app.job(max_attempts=2, **FAST)
    async def large(ctx: Context) -> None:
        await ctx.step("get", lambda: "x" * 100_000)
        if ctx.attempt == 1:
            await hand.run("DELETE FROM blobs")
            raise RuntimeError("again")

    job = await large.enqueue()
    async with working(app):
        with pytest.raises(JobFailed, match=r"the content sha256:\w+ is gone"):
            await job.result("60s")
    await hand.close()


async def test_the_result_of_other_code_stands_and_it_is_noted_once(app: Keptwork) -> None:
    @app.job(**FAST)
    async def edited(ctx: Context) -> str:
        code = (lambda: "old") if ctx.attempt == 1 else (lambda: "new")
        found = await ctx.step("get", code)
        await ctx.step("same", str, "x")
        if ctx.attempt < 3:
            raise RuntimeError("again")
        return str(found)

    job = await edited.enqueue()
    async with working(app):
        assert await job.result("60s") == "old"
    found = await kept(app, job.key)
    assert found["get"].changed_at is not None
    assert found["get"].changed_at > found["get"].created_at
    assert found["same"].changed_at is None


async def test_an_error_in_a_step_is_not_kept(app: Keptwork) -> None:
    tries: list[int] = []

    def shaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("no luck")
        return len(tries)

    @app.job(**FAST)
    async def luck(ctx: Context) -> int:
        return int(await ctx.step("try", shaky))

    job = await luck.enqueue()
    async with working(app):
        assert await job.result("60s") == 3


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_worker_that_has_lost_the_job_keeps_no_result_and_lives(
    app: Keptwork, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of the loss from the store alone: nobody looks after its leases meanwhile."""
    monkeypatch.setattr("keptwork.workers.lease_renewer.LOOK_SECONDS", 60)
    refused: list[BaseException] = []

    @app.job()
    async def slow(ctx: Context) -> None:
        await moved(await app.open(), JOB, job.key, "cancel")
        ctx.progress(0.5, "nobody will read this")
        try:
            await (asyncio.to_thread(ctx.step, "late", str) if in_thread else ctx.step("late", str))
        except LeaseLost as lost:
            refused.append(lost)

    job = await slow.enqueue()
    await app.work(until_idle=True)
    assert [type(error) for error in refused] == [LeaseLost]
    assert await kept(app, job.key) == {}


# --- sleep


@pytest.mark.acceptance
async def test_a_job_that_sleeps_holds_no_slot_and_spends_no_attempt(app: Keptwork) -> None:
    order: list[str] = []

    @app.job()
    async def sleeper(ctx: Context) -> int:
        await ctx.step("before", order.append, "before")
        await ctx.sleep("3s")
        await ctx.step("after", order.append, "after")
        return ctx.attempt

    @app.job()
    async def other(ctx: Context) -> None:
        order.append("other")

    first = await sleeper.enqueue()
    async with working(app, concurrency=1):

        async def asleep() -> bool:
            found = await row(app, first)
            return (found["state"], found["waits_for"]) == ("queued", "sleep")

        await eventually(asleep)
        second = await other.enqueue()
        await second.result("60s")
        assert await first.result("60s") == 1
    assert order == ["before", "other", "after"]
    assert await triggers(app, first) == ["enqueue", "claim", "start", "snooze", "claim", "start", "succeed"]


async def test_a_handler_in_a_thread_sleeps_too_and_several_sleeps_follow_each_other(app: Keptwork) -> None:
    @app.job()
    def sleeper(ctx: Context) -> int:
        ctx.sleep("10ms")
        ctx.sleep("10ms", name="second")
        ctx.sleep("10ms")
        return ctx.fencing_token

    job = await sleeper.enqueue()
    async with working(app):
        assert await job.result("60s") == 3
    assert list(await kept(app, job.key)) == ["#sleep 1", "#sleep second", "#sleep 3"]


async def test_a_sleep_passes_through_except_and_finally_runs(app: Keptwork) -> None:
    seen: list[str] = []

    @app.job()
    async def careful(ctx: Context) -> str:
        try:
            await ctx.sleep("10ms")
        except Exception:
            seen.append("caught")
        finally:
            seen.append("finally")
        return "done"

    job = await careful.enqueue()
    async with working(app):
        assert await job.result("60s") == "done"
    assert seen == ["finally", "finally"]


# --- in a process of its own


@pytest.mark.acceptance
@pytest.mark.parametrize("handler", [step_jobs.steps_async, step_jobs.steps_plain])
async def test_an_isolated_handler_has_the_same_steps(app: Keptwork, handler: Any, tmp_path: Any) -> None:
    isolated = app.job(isolation="process", **FAST)(handler)
    job = await isolated.enqueue(path=str(tmp_path / "ran"), size=LARGEST_IN_ROW * 2)
    async with working(app):
        assert await job.result("60s") == ["one", LARGEST_IN_ROW * 2, "three"]
    assert (tmp_path / "ran").read_text().splitlines() == ["one", "two", "three"]
    found = await kept(app, job.key)
    assert [(one.name, one.hash is not None) for one in found.values()] == [
        ("one", False),
        ("two", True),
        ("#sleep 1", False),
        ("three", False),
    ]
    assert [one.epoch for one in found.values()] == [0, 0, 1, 2]


@pytest.mark.acceptance
async def test_an_isolated_handler_has_more_steps_than_one_reply_holds(app: Keptwork) -> None:
    isolated = app.job(isolation="process", **FAST)(step_jobs.many_steps)
    job = await isolated.enqueue(count=450)
    async with working(app):
        assert await job.result("60s") == sum(range(450))
    assert len(await kept(app, job.key)) == 450


@pytest.mark.acceptance
async def test_the_worker_trusts_nothing_that_an_isolated_process_asks_for(sqlite_url: str) -> None:
    async with Keptwork(sqlite_url) as app:
        forges = app.job(isolation="process")(step_jobs.forges)
        jobs = await app.enqueue_many(forges, [{"what": what} for what, _ in step_jobs.FORGED])
        await app.work(until_idle=True)
        for job, (what, said) in zip(jobs, step_jobs.FORGED, strict=True):
            assert said in await job.result(), what
            assert await kept(app, job.key) == {}


async def test_a_job_that_was_asked_to_stop_is_cancelled_instead_of_waiting(app: Keptwork) -> None:
    @app.job()
    async def sleeper(ctx: Context) -> None:
        await (await app.open()).request_stop(job.key, 1)
        while not ctx.cancel_requested:  # noqa: ASYNC110 - the context has no event of it
            await asyncio.sleep(0.01)
        await ctx.sleep("1h")

    job = await sleeper.enqueue()
    async with working(app):
        await reaches(app, job, "cancelled")

"""A job that waits for several things at a time: any one of them wakes it, and all of them are shown."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.diagnostics import why_jobs
from keptwork.errors import JoinTimeout, NoEvent
from keptwork.handles import Handle
from tests.support.command import run
from tests.worker.scene import eventually, last, row, triggers, working


async def test_any_of_two_events_wakes_the_job(app: Keptwork) -> None:
    runs: list[int] = []

    @app.job()
    async def both(ctx: Context) -> Any:
        runs.append(ctx.fencing_token)
        return await asyncio.gather(ctx.wait_for_event("a"), ctx.wait_for_event("b"))

    job = await both.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "event a, event b")
        await app.send_event("b", 2)
        await waits(app, job, "event a")
        await app.send_event("a", 1)
        assert await job.result("60s") == [1, 2]
    assert len(runs) == 3


async def test_timeout_of_one_wait_wakes_a_job_that_waits_for_another_too(app: Keptwork) -> None:
    @app.job()
    async def limited(ctx: Context) -> Any:
        found = await asyncio.gather(
            ctx.wait_for_event("never", timeout="50ms"), ctx.wait_for_event("go"), return_exceptions=True
        )
        return [type(found[0]).__name__, found[1]]

    job = await limited.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "event go")
        await app.send_event("go", "went")
        assert await job.result("60s") == [NoEvent.__name__, "went"]


async def test_job_is_due_at_the_earliest_end_of_its_waits(app: Keptwork) -> None:
    @app.job()
    async def sleeps(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep("2h"), ctx.sleep("1h"), ctx.wait_for_event("go", timeout="3h"))

    job = await sleeps.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "sleep, event go")
    found, now = await row(app, job), await (await app.open()).now()
    assert 59 * 60_000_000 < found["run_at"] - now <= 3_600_000_000


async def test_child_crew_approval_and_event_each_wake_the_job(app: Keptwork) -> None:
    gate = asyncio.Event()

    @app.job()
    async def child(ctx: Context, **_: Any) -> str:
        await gate.wait()
        return "grown"

    @app.job()
    async def all_of_them(ctx: Context) -> Any:
        async def asked() -> str:
            return str((await ctx.wait_for_approval("go?")).by)

        kid = await ctx.spawn(child)
        return await asyncio.gather(
            ctx.join(kid), ctx.crew(child, task="t"), asked(), ctx.wait_for_event("go"), return_exceptions=True
        )

    job = await all_of_them.enqueue()
    async with working(app, concurrency=4):

        async def asks() -> bool:
            return bool(await app.approvals()) and (await row(app, job))["waits_for"] is not None

        await eventually(asks)
        await app.send_event("go", "went")
        (question,) = await app.approvals()
        await app.approve(question.public_id, by="ann")

        async def woken_twice() -> bool:
            left = (await row(app, job))["waits_for"] or ""
            return "event" not in left and "approval" not in left and "children" in left

        await eventually(woken_twice)
        gate.set()
        assert await job.result("60s") == ["grown", ["grown"], "ann", "went"]


async def test_what_comes_while_the_waits_are_written_wakes_the_job(app: Keptwork) -> None:
    """The event is sent between the look at it and the suspension."""

    @app.job()
    async def late(ctx: Context) -> Any:
        async def sends() -> None:
            await asyncio.sleep(0)

        async def slow() -> int:
            await app.send_event("b", "in between")
            return 1

        return (await asyncio.gather(ctx.wait_for_event("a"), ctx.wait_for_event("b"), ctx.step("slow", slow)))[:2]

    job = await late.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "event a")
        await app.send_event("a", "now")
        assert await job.result("60s") == ["now", "in between"]


async def test_why_lists_every_wait_with_its_end(app: Keptwork) -> None:
    @app.job()
    async def several(ctx: Context) -> None:
        await asyncio.gather(
            ctx.wait_for_event("a", timeout="1h"),
            ctx.wait_for_event("b"),
            ctx.sleep("2h"),
            ctx.wait_for_approval("go?", expires="3h"),
        )

    job = await several.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job)
    store = await app.open()
    _, reasons = await why_jobs.why(store, 1, job.id)
    ends = {reason.says: reason.clears_at is not None for reason in reasons[:4]}
    assert ends == {
        "it waits for the event 'a'": True,
        "it waits for the event 'b'": False,
        "its handler sleeps": True,
        "it waits for somebody (anyone) to approve: go?": True,
    }


async def test_jobs_show_lists_every_wait(app: Keptwork, database_url: str) -> None:
    @app.job()
    async def several(ctx: Context) -> None:
        await asyncio.gather(*(ctx.wait_for_event(f"part {n} of a long name that fills a row") for n in range(20)))

    job = await several.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job)
    told = await asyncio.to_thread(run, "jobs", "show", job.id, "--db", database_url)
    assert all(f"event part {n} of" in told.stdout for n in range(20)), told.stdout
    shown = json.loads((await asyncio.to_thread(run, "jobs", "show", job.id, "--json", "--db", database_url)).stdout)
    assert shown["waits_for"].endswith("and more (20 in all)")
    await app.send_event("part 17 of a long name that fills a row")
    assert (await row(app, job))["waits_for"] is None


async def test_waits_are_gone_with_their_job(app: Keptwork) -> None:
    @app.job()
    async def several(ctx: Context) -> None:
        await asyncio.gather(ctx.wait_for_event("a"), ctx.wait_for_event("b"))

    job = await several.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job)
        await app.send_event("a")
        await app.send_event("b")
        await job.result("60s")
    store = await app.open()
    assert await store.open_waits(1, job.key) == []
    with suppress(ZeroDivisionError):  # which undoes it: the log still tells of the job
        async with store.transaction() as transaction:
            before = await transaction.fetch("SELECT job_id FROM waits")
            await transaction.execute("DELETE FROM jobs")
            after = await transaction.fetch("SELECT job_id FROM waits")
            raise ZeroDivisionError
    assert len(before) == 2
    assert after == []


async def test_join_with_a_timeout_gives_up_once_and_for_good(app: Keptwork) -> None:
    gate = threading.Event()

    @app.job()
    def child(ctx: Context) -> str:
        gate.wait()
        return "late"

    @app.job()
    async def parent(ctx: Context) -> Any:
        kid = await ctx.spawn(child)
        try:
            return await ctx.join(kid, timeout="50ms")
        except TimeoutError as late:
            gate.set()
            return [type(late).__name__, await ctx.join(kid)]

    job = await parent.enqueue()
    try:
        async with working(app, concurrency=2):
            assert await job.result("60s") == [JoinTimeout.__name__, "late"]
    finally:
        gate.set()


async def test_join_that_is_in_time_returns_results(app: Keptwork) -> None:
    @app.job()
    async def child(ctx: Context, n: int) -> int:
        return n

    @app.job()
    async def parent(ctx: Context) -> Any:
        return await ctx.join(await ctx.spawn_many(child, [{"n": 1}, {"n": 2}]), timeout="1h")

    job = await parent.enqueue()
    async with working(app, concurrency=2):
        assert await job.result("60s") == [1, 2]


# --- handlers on threads


@pytest.mark.parametrize("swallows", [False, True])
async def test_wait_on_a_thread_suspends_whatever_the_handler_makes_of_it(app: Keptwork, swallows: bool) -> None:
    @app.job()
    def waits_on_thread(ctx: Context) -> Any:
        try:
            return ctx.wait_for_event("go")
        except BaseException:
            if swallows:
                return "without having waited"
            raise

    job = await waits_on_thread.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "event go")
        await app.send_event("go", "went")
        assert await job.result("60s") == "went"


async def test_wait_on_a_thread_of_an_async_handler_is_no_result(app: Keptwork) -> None:
    @app.job()
    async def mixed(ctx: Context) -> Any:
        return await asyncio.gather(asyncio.to_thread(ctx.wait_for_event, "go"), return_exceptions=True)

    job = await mixed.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "event go")
        await app.send_event("go", "went")
        assert await job.result("60s") == ["went"]


# --- the end of a run


async def test_durable_calls_in_finally_do_nothing_once_the_run_has_ended(app: Keptwork) -> None:
    ran: list[str] = []

    @app.job()
    async def tidy(ctx: Context) -> Any:
        try:
            return await ctx.wait_for_event("go")
        finally:
            await ctx.step("tidy up", ran.append, "tidied")

    job = await tidy.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "event go")
        assert ran == []
        await app.send_event("go", "went")
        assert await job.result("60s") == "went"
    assert ran == ["tidied"]


async def test_failure_beside_a_parked_wait_is_the_outcome(app: Keptwork) -> None:
    @app.job(max_attempts=1)
    async def fails(ctx: Context) -> Any:
        async def broken() -> None:
            raise ValueError("broken")

        await asyncio.gather(ctx.step("broken", broken), ctx.wait_for_event("go"))

    job = await fails.enqueue()
    async with working(app, concurrency=1):

        async def ended() -> bool:
            return (await triggers(app, job))[-1] == "dead_letter"

        await eventually(ended)
    assert "ValueError: broken" in (await row(app, job))["error"]


async def test_time_out_around_a_step_does_what_asyncio_says(app: Keptwork) -> None:
    @app.job()
    async def impatient(ctx: Context) -> str:
        try:
            await asyncio.wait_for(ctx.step("slow", asyncio.sleep, 30), 0.01)
        except TimeoutError:
            return str(await ctx.wait_for_event("go"))
        return "in time"

    job = await impatient.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "event go")
        await app.send_event("go", "went")
        assert await job.result("60s") == "went"


async def test_step_that_waits_inside_is_not_in_flight(app: Keptwork) -> None:
    @app.job()
    async def nested(ctx: Context) -> Any:
        async def outer() -> Any:
            return await ctx.wait_for_event("go")

        return await ctx.step("outer", outer)

    job = await nested.enqueue()
    async with working(app, concurrency=1):
        await waits(app, job, "event go")
        await app.send_event("go", "went")
        assert await job.result("60s") == "went"


async def test_handler_that_does_not_end_with_its_run_frees_its_slot(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.workers.parked_waits.GRACE_SECONDS", 0.05)
    gate = asyncio.Event()

    @app.job()
    async def clings(ctx: Context) -> Any:
        try:
            return await ctx.wait_for_event("go")
        except asyncio.CancelledError:
            await gate.wait()
            raise

    @app.job()
    async def next_one(ctx: Context) -> str:
        return "done"

    job = await clings.enqueue()
    async with working(app, concurrency=4):
        await waits(app, job, "event go")
        assert await (await next_one.enqueue()).result("60s") == "done"
        await app.send_event("go", "went")
        assert await job.result("60s") == "went"
        gate.set()
    assert (await last(app, job))[0] == "succeed"


async def waits(app: Keptwork, job: Handle, for_what: str | None = None) -> None:
    async def there() -> bool:
        found = (await row(app, job))["waits_for"]
        return found is not None and for_what in (None, found)

    await eventually(there)

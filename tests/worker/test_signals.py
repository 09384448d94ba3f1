"""Events on each kind of store: in order, none lost, none twice, without holding a slot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.errors import BadInput, NotFound
from tests.worker.scene import eventually, reaches, row, triggers, working


async def waiting_for(app: Keptwork, job: Any, event: str) -> None:
    async def waits() -> bool:
        return bool((await row(app, job))["waits_for"] == f"event {event}")

    await eventually(waits)


def taker(app: Keptwork) -> Any:
    @app.job()
    async def take(ctx: Context, event: str, count: int) -> Any:
        return [await ctx.wait_for_event(event) for _ in range(count)]

    return take


async def test_events_sent_before_and_after_the_wait_come_once_each_and_in_order(app: Keptwork) -> None:
    take = taker(app)
    await app.send_event("paid", {"n": 1})
    job = await take.enqueue(event="paid", count=4)
    async with working(app, concurrency=1):
        await waiting_for(app, job, "paid")
        sent = await app.send_event("paid", {"n": 2})
        assert (sent.new, sent.woken) == (True, 1)
        await app.send_event("other", {"n": 0})
        await waiting_for(app, job, "paid")
        async with app.transaction() as tx:
            await app.send_event("paid", {"n": 3}, _tx=tx)
            await app.send_event("paid", {"n": 4}, _tx=tx)
        assert await job.result("60s") == [{"n": n} for n in (1, 2, 3, 4)]


async def test_each_job_gets_each_event_and_one_for_a_job_is_seen_by_no_other(app: Keptwork) -> None:
    take = taker(app)
    first, second = await take.enqueue(event="go", count=2), await take.enqueue(event="go", count=2)
    async with working(app, concurrency=1):
        await app.send_event("go", "you", job=first)
        await app.send_event("go", "all")
        assert await first.result("60s") == ["you", "all"]
        await app.send_event("go", "late", job=second.id)
        assert await second.result("60s") == ["all", "late"]


async def test_the_same_key_sends_once(app: Keptwork) -> None:
    take = taker(app)
    one = await app.send_event("go", 1, key="k")
    again = await app.send_event("go", 2, key="k")
    assert (again.id, again.new) == (one.id, False)
    await app.send_event("go", 3)
    job = await take.enqueue(event="go", count=2)
    async with working(app, concurrency=1):
        assert await job.result("60s") == [1, 3]


async def test_a_wait_times_out_once_and_for_all_and_the_next_wait_still_gets_the_event(app: Keptwork) -> None:
    runs: list[int] = []

    @app.job()
    async def patient(ctx: Context) -> Any:
        runs.append(1)
        said = ""
        try:
            await ctx.wait_for_event("go", timeout="50ms")
        except TimeoutError as error:
            said = str(error)
        return [said, await ctx.wait_for_event("go", timeout="1h")]

    job = await patient.enqueue()
    async with working(app, concurrency=1):

        async def timed_out_once() -> bool:
            kept = await (await app.open()).checkpoints(1, job.key)
            return "#event go 1" in {one.name for one in kept}

        await eventually(timed_out_once)
        await app.send_event("go", "now")
        assert await job.result("60s") == ["No event 'go' came within 50ms", "now"]


async def test_a_timeout_nobody_catches_fails_the_job_at_once(app: Keptwork) -> None:
    @app.job()
    def impatient(ctx: Context) -> Any:
        return ctx.wait_for_event("go", timeout="10ms")

    job = await impatient.enqueue()
    async with working(app, concurrency=1):
        await reaches(app, job, "failed")
    assert "retry" not in await triggers(app, job)


async def test_two_waits_side_by_side_take_two_events(app: Keptwork) -> None:
    @app.job()
    async def both(ctx: Context) -> Any:
        return await asyncio.gather(ctx.wait_for_event("go"), ctx.wait_for_event("go"))

    job = await both.enqueue()
    await app.send_event("go", 1)
    await app.send_event("go", 2)
    async with working(app, concurrency=1):
        assert await job.result("60s") == [1, 2]


async def test_what_cannot_be_sent_is_refused_in_one_line(app: Keptwork) -> None:
    with pytest.raises(BadInput, match="JSON"):
        await app.send_event("go", object())
    with pytest.raises(BadInput, match="printable"):
        await app.send_event(" ")
    with pytest.raises(NotFound):
        await app.send_event("go", job="job_nothing")
    take = taker(app)
    job = await take.enqueue(event="a" * 201, count=1)
    async with working(app, concurrency=1):
        await reaches(app, job, "failed")


async def test_events_and_waits_in_a_race_never_miss_each_other(app: Keptwork) -> None:
    """Ping-pong: each event is sent while the job is on its way into the wait for it."""
    take = taker(app)
    job = await take.enqueue(event="go", count=60)
    async with working(app, concurrency=1):
        for n in range(60):
            await app.send_event("go", n)
            await asyncio.sleep(0.002 * (n % 4))
        assert await job.result("60s") == list(range(60))

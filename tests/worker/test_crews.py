"""Crews with a real worker on each kind of store: results gathered, crews inside crews, and nobody holds what others
need while it waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keptwork import CrewFailed, Keptwork, PermanentError
from keptwork.context import Context
from keptwork.core.lifecycles import CREW
from keptwork.crews import commands as crews
from keptwork.crews import engine as crew_moves
from keptwork.errors import BadInput
from keptwork.handles_crew import CrewHandle
from keptwork.testing import Harness
from tests.conformance.stage import entity
from tests.worker.scene import eventually, working


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keptwork.maintenance.reconciler.BEAT_SECONDS", 0.1)


async def state(app: Keptwork, crew: CrewHandle) -> str:
    return str((await entity(await app.open(), CREW, crew.key))["state"])


async def is_in(app: Keptwork, crew: CrewHandle, wanted: str) -> None:
    async def there() -> bool:
        return await state(app, crew) == wanted

    await eventually(there)


async def test_each_worker_does_its_share_and_the_results_come_in_order(app: Keptwork) -> None:
    @app.job()
    async def part(ctx: Context, share: int, shares: int, task: str, items: list[int]) -> int:
        assert task == "add up"
        return sum(items[share::shares])

    @app.job()
    def ordinary(ctx: Context, share: int, shares: int, task: str) -> str:
        return f"{share} of {shares}"

    first = await app.crew(part, task="add up", workers=3, items=list(range(10)))
    second = await app.crew(ordinary, task="count", workers=2, _key="once")
    assert (await app.crew(ordinary, task="count", workers=2, _key="once")).id == second.id
    async with working(app, concurrency=2):
        assert await first.result("60s") == [18, 12, 15]
        assert await second.result("60s") == ["0 of 2", "1 of 2"]


async def test_crews_inside_crews_down_to_the_last_quota(app: Keptwork) -> None:
    @app.job()
    async def deeper(ctx: Context, share: int, shares: int, task: str, left: int) -> Any:
        return [await ctx.crew(deeper, task=f"{left} to go", left=left - 1), share] if left else "bottom"

    crew = await app.crew(deeper, task="go down", workers=2, left=5)
    async with working(app, concurrency=1):
        found = await crew.result("60s")
    innermost: Any = found[1]
    for _ in range(5):
        ((innermost,), *_) = (innermost,)[0]
    assert innermost == "bottom"
    assert not any(used for _, _, used in await crew_moves.quotas(await app.open(), 1))


async def test_an_ordinary_function_and_a_job_that_is_no_share_make_crews_too(app: Keptwork) -> None:
    @app.job()
    def leaf(ctx: Context, share: int, shares: int, task: str) -> int:
        return share

    @app.job()
    def parent(ctx: Context) -> Any:
        return [ctx.crew("leaf", task="a", workers=2), ctx.crew(leaf, task="b")]

    job = await parent.enqueue()
    async with working(app, concurrency=1):
        assert await job.result("60s") == [[0, 1], [0]]


async def test_a_share_can_live_with_a_crew_that_failed(app: Keptwork) -> None:
    @app.job()
    async def bad(ctx: Context, share: int, shares: int, task: str) -> None:
        raise PermanentError("no good")

    @app.job()
    async def brave(ctx: Context, share: int, shares: int, task: str) -> str:
        try:
            return str(await ctx.crew(bad, task="try"))
        except CrewFailed as failed:
            return str(failed)

    @app.job()
    async def other(ctx: Context, share: int, shares: int, task: str) -> Any:
        return await ctx.crew(bad, task="try", workers=2)

    crew, doomed = await app.crew(brave, task="live"), await app.crew(other, task="die")
    async with working(app, concurrency=4):
        (said,) = await crew.result("60s")
        assert "ended FAILED: share job_" in said
        assert "no good" in said
        with pytest.raises(CrewFailed, match="no good"):
            await doomed.result("60s")


async def test_what_a_crew_cannot_be_given_is_refused_where_it_is_said(app: Keptwork) -> None:
    @app.job()
    async def plain(ctx: Context, n: int) -> None: ...

    @app.job(max_attempts=3)
    async def asks(ctx: Context, workers: int) -> None:
        await ctx.crew(asks, task="too many", workers=workers)

    with pytest.raises(BadInput, match="unexpected keyword argument 'share'"):
        await app.crew(plain, task="none", n=1)
    job = await asks.enqueue(workers=11)
    async with working(app):
        with pytest.raises(Exception, match="a crew of 11 workers cannot be"):
            await job.result("60s")


# --- what is waited for holds nothing


def entangled(app: Keptwork) -> Any:
    """The share of one crew waits for a crew inside it, which waits for what only another crew can say."""

    @app.job()
    async def listener(ctx: Context, share: int, shares: int, task: str) -> Any:
        return await ctx.wait_for_event("said")

    @app.job()
    async def waiting(ctx: Context, share: int, shares: int, task: str) -> Any:
        return await ctx.crew(listener, task="listen")

    @app.job()
    async def speaker(ctx: Context, share: int, shares: int, task: str) -> None:
        await app.send_event("said", "hello")

    return waiting, speaker


async def test_a_share_that_waits_does_not_keep_the_crew_from_starting_that_it_needs(app: Keptwork) -> None:
    waiting, speaker = entangled(app)
    await crews.set_quotas(await app.open(), 1, {0: 1})
    first, second = await app.crew(waiting, task="wait"), await app.crew(speaker, task="speak")
    async with working(app, concurrency=2):
        assert await first.result("60s") == [["hello"]]
        assert await second.result("60s") == [None]


@pytest.mark.acceptance
async def test_a_twin_whose_waiting_shares_keep_their_workers_is_stuck_for_ever(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.workers.waits.HELD_BY_QUOTA", None)
    waiting, speaker = entangled(app)
    await crews.set_quotas(await app.open(), 1, {0: 1})
    first, second = await app.crew(waiting, task="wait"), await app.crew(speaker, task="speak")
    async with working(app, concurrency=2):
        (inner,) = [row["id"] for row in await inside(app, first, 1)]
        await is_in(app, CrewHandle(inner, app), "RUNNING")
        await asyncio.sleep(0.5)
        assert [await state(app, first), await state(app, second)] == ["RUNNING", "PENDING"]
    await first.cancel()


async def inside(app: Keptwork, crew: CrewHandle, number: int) -> list[dict[str, Any]]:
    """The crews inside one, once there are so many."""
    store = await app.open()

    async def there() -> bool:
        return len(await store.subcrews([crew.key])) == number

    await eventually(there)
    return await store.subcrews([crew.key])


# --- time and cancelling


async def test_a_running_tree_of_depth_three_is_cancelled_with_everything_in_it(app: Keptwork) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @app.job()
    async def leaf(ctx: Context, share: int, shares: int, task: str) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    @app.job()
    async def branch(ctx: Context, share: int, shares: int, task: str, left: int) -> Any:
        if left:
            return await ctx.crew(branch, task="branch", left=left - 1)
        return await ctx.crew(leaf, task="leaf", workers=2)

    crew = await app.crew(branch, task="grow", workers=2, left=2)
    store = await app.open()
    async with working(app, concurrency=8):
        async with asyncio.timeout(60):
            await begun.wait()
        await crew.cancel("enough")
        found = await store.crews(1, inside=True)
        assert {row["state"] for row in found} == {"CANCELED"}
        assert max(row["depth"] for row in found) == 3
        assert await store.shares([row["id"] for row in found], unfinished_only=True) == []
        async with asyncio.timeout(60):
            await stopped.wait()
    assert not any(used for _, _, used in await crew_moves.quotas(store, 1))


async def test_a_crew_whose_time_is_over_is_cancelled_by_the_follow_up(app: Keptwork) -> None:
    @app.job()
    async def slow(ctx: Context, share: int, shares: int, task: str) -> None:
        await asyncio.sleep(60)

    crew = await app.crew(slow, task="take long", _timeout="300ms")
    async with working(app):
        with pytest.raises(CrewFailed, match="ended CANCELED: timeout"):
            await crew.result("60s")


async def test_crews_under_a_clock_of_the_tests() -> None:
    app = Keptwork("sqlite:///:memory:")

    @app.job()
    async def leaf(ctx: Context, share: int, shares: int, task: str) -> int:
        await ctx.sleep("2h")
        return share

    @app.job()
    async def top(ctx: Context, share: int, shares: int, task: str) -> Any:
        await ctx.step("before", str)
        return await ctx.crew(leaf, task="sleep", workers=2)

    async with Harness(app) as harness:
        crew = await app.crew(top, task="rest")
        harness.crash_at("before", "before")
        await harness.drain(within="3h")
        assert await crew.result("1s") == [[0, 1]]
        late = await app.crew(top, task="rest", _timeout="1h")
        await harness.drain(within="2h")
        assert await state(app, late) == "CANCELED"

"""Many families and events on two workers at once: whoever waits is woken by what it waits for, not by its patience."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from tests.support.broken_sql import leave_out


def declare(app: Keptwork) -> Any:
    @app.job(name="leaf")
    async def leaf(ctx: Context, n: int) -> int:
        return n

    @app.job(name="family")
    async def family(ctx: Context, n: int, event: str) -> Any:
        kids = await ctx.spawn_many(leaf, [{"n": n}, {"n": n + 1}])
        told = await ctx.wait_for_event(event)
        return [told, await ctx.join(kids)]

    return family


@asynccontextmanager
async def two_workers(url: str) -> AsyncIterator[tuple[Keptwork, Any]]:
    """Each with a store of its own, as in two processes."""
    async with Keptwork(url) as one, Keptwork(url) as other:
        family = declare(one)
        declare(other)
        tasks = [asyncio.create_task(app.work(concurrency=8)) for app in (one, other)]
        try:
            yield one, family
        finally:
            one.stop()
            other.stop()
            await asyncio.gather(*tasks)


async def stuck(url: str, rounds: int, families: int, patience: str = "20s") -> int:
    """How many are not done soon after all they waited for has happened."""
    left = 0
    async with two_workers(url) as (app, family):
        for number in range(rounds):
            jobs = [await family.enqueue(n=n, event=f"go {number}") for n in range(families)]
            await app.send_event(f"go {number}", number)
            outcomes = await asyncio.gather(*(job.result(patience) for job in jobs), return_exceptions=True)
            left += sum(isinstance(outcome, BaseException) for outcome in outcomes)
    return left


async def test_no_family_is_left_waiting(database_url: str) -> None:
    assert await stuck(database_url, 3, 20) == 0


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_no_family_of_thousands_is_left_waiting(database_url: str) -> None:
    began = time.monotonic()
    assert await stuck(database_url, 50, 40) == 0
    print(
        f"\n2000 families of two children and an event each on two workers: none left, {time.monotonic() - began:.0f} s"
    )


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_store_without_the_locks_leaves_some_waiting(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, "lock_jobs", "{for_change}")
    leave_out(monkeypatch, "lock_signals", r"pg_advisory_xact_lock\(k.class, k.number\)", "k.number")
    left = await stuck(postgres_copy, 20, 40, "3s")
    print(f"\nof 800 families without the locks {left} were left waiting")
    assert left

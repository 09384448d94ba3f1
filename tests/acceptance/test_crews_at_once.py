"""Many crews, several workers and people who cancel, all at the same time: nothing is left over, nobody holds more than
the quotas allow, and on PostgreSQL no two of them ever wait in a circle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from keptwork import Keptwork, PermanentError
from keptwork.audit import verify
from keptwork.context import Context
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW
from keptwork.crews import commands as crews
from keptwork.crews import engine as crew_moves
from keptwork.errors import InvalidTransition
from keptwork.store import Store
from tests.conformance.by_hand import hand_on


def application(url: str) -> Keptwork:
    app = Keptwork(url)

    @app.job(name="part", max_attempts=2, backoff="1ms")
    async def part(ctx: Context, share: int, shares: int, task: str, seed: int) -> int:
        chance = random.Random(seed * 31 + share)
        if chance.random() < 0.3:
            await ctx.sleep("5ms")
        if chance.random() < 0.1:
            raise PermanentError("as drawn")
        return share

    @app.job(name="whole")
    async def whole(ctx: Context, share: int, shares: int, task: str, seed: int) -> Any:
        try:
            return await ctx.crew("part", task="part", workers=1 + (seed + share) % 3, seed=seed + share)
        except PermanentError:
            return None

    return app


@contextmanager
def watched(store: Store, most: dict[int, int]) -> Iterator[list[int]]:
    """How many of depth 0 and 1 were seen at work at once, at most, while the block lasts."""
    seen = [0, 0]

    async def look() -> None:
        while True:
            for depth, _, used in (await crew_moves.quotas(store, 1))[:2]:
                seen[depth] = max(seen[depth], used)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
    assert all(seen[depth] <= most[depth] for depth in most), seen


async def upset(store: Store, keys: list[int], chance: random.Random) -> int:
    """Cancels some of them while they are at work."""
    done = 0
    for key in chance.sample(keys, len(keys) // 5):
        await asyncio.sleep(0.02)
        try:
            await crews.cancel(store, 1, public_id(CREW.name, key))
            done += 1
        except InvalidTransition:
            pass  # it was faster
    return done


async def all_at_once(store: Store, url: str, number: int) -> list[dict[str, Any]]:
    apps = [application(url) for _ in range(3)]
    most = {0: 6, 1: 5}
    await crews.set_quotas(store, 1, most)
    for app in apps:
        await app.open()
    kind = apps[0].kinds["whole"]
    new = [crews.new_crew(kind, {"seed": seed}, 1, task="whole", workers=1 + seed % 3) for seed in range(number)]
    with watched(store, most):
        work = [asyncio.create_task(app.work(concurrency=4)) for app in apps]
        keys = await asyncio.gather(*(crews.submit(store, one) for one in new))
        await upset(store, keys, random.Random(number))
        rows = [await crews.wait(store, 1, public_id(CREW.name, key), "60s") for key in keys]
        for app in apps:
            app.stop()
        await asyncio.gather(*work)
    for app in apps:
        await app.close()
    return rows


async def deadlocks(url: str) -> int:
    if url.startswith("sqlite"):
        return 0
    hand = await hand_on(url)
    ((found,),) = await hand.run("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    await hand.close()
    return int(found)


async def crowd(store: Store, url: str, number: int) -> dict[str, int]:
    rows = await all_at_once(store, url, number)
    everything = await store.crews(1, inside=True, limit=10_000)
    assert {row["state"] for row in everything} <= {"COMPLETED", "CANCELED", "FAILED"}
    assert await store.shares([row["id"] for row in everything], unfinished_only=True) == []
    assert not any(used for _, _, used in await crew_moves.quotas(store, 1))
    assert await deadlocks(url) == 0
    assert (await verify.verify(store)).clean
    return {state: sum(row["state"] == state for row in rows) for state in ("COMPLETED", "CANCELED", "FAILED")}


@pytest.mark.timeout(120)
async def test_crews_workers_and_cancels_at_the_same_time(store: Store, database_url: str) -> None:
    ended = await crowd(store, database_url, 20)
    assert ended["COMPLETED"]
    assert ended["FAILED"] == 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_many_crews_at_the_same_time(store: Store, database_url: str) -> None:
    ended = await crowd(store, database_url, 400)
    print(f"400 crews with crews inside them, 3 workers, {database_url.partition(':')[0]}: {ended}, no deadlock")

"""What a worker counts of itself, and when it can be read by others."""

from __future__ import annotations

import asyncio

import pytest

from keptwork import Keptwork
from keptwork.core import metrics
from keptwork.core.metrics import ENGINE
from keptwork.observability.stats import Readout
from keptwork.store import Store, open_store
from tests.conformance.by_hand import hand_on
from tests.worker.scene import eventually, reaches, working

# How the counters are made unwritable, and writable again.
SPOILT = {
    "sqlite": (
        "CREATE TRIGGER spoilt BEFORE INSERT ON counters BEGIN SELECT RAISE(ABORT, 'spoilt'); END",
        "DROP TRIGGER spoilt",
    ),
    "postgr": ("ALTER TABLE counters RENAME TO spoilt", "ALTER TABLE spoilt RENAME TO counters"),
}


async def counted(store: Store) -> Readout:
    return Readout.of(await store.counters(ENGINE))


@pytest.mark.acceptance
async def test_a_worker_at_work_is_read_from_elsewhere(
    app: Keptwork, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.store.counters.FLUSH_SECONDS", 0.05)
    elsewhere = await open_store(database_url)

    @app.job(lease="1s")
    async def slow(ctx: object) -> None:
        await asyncio.sleep(0.8)

    async def told() -> bool:
        found = await counted(elsewhere)
        needed = ((metrics.CLAIM_CALLS, "jobs"), (metrics.CLAIM_CALLS, "empty"), (metrics.RENEWALS, "kept"))
        return all(found.total(metric, outcome=outcome) for metric, outcome in needed)

    async with working(app):
        await slow.enqueue()
        await eventually(told)
    assert (await counted(elsewhere)).total(metrics.RENEWALS, outcome="lost") == 0
    await elsewhere.close()


async def test_what_a_worker_counted_is_there_when_it_has_ended(app: Keptwork) -> None:
    @app.job()
    async def quick(ctx: object) -> None: ...

    async with working(app):
        for key in "ab":  # the second rings for a worker that listens by now; with a key it goes through the queue
            await reaches(app, await quick.enqueue(_key=key), "succeeded")
    store = await app.open()
    found = await counted(store)
    assert found.total(metrics.CLAIM_CALLS, outcome="jobs") == 2
    assert found.total(metrics.WAKEUPS) >= 1
    assert not store.tally.take()


@pytest.mark.acceptance
async def test_a_worker_that_cannot_write_its_counts_works_on_and_keeps_them(
    app: Keptwork, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.store.counters.FLUSH_SECONDS", 0.02)
    await app.open()
    hand = await hand_on(database_url)
    await hand.run(SPOILT[database_url[:6]][0])

    @app.job()
    async def quick(ctx: object) -> None: ...

    await app.enqueue_many(quick, [{}] * 20)
    async with working(app):
        job = await quick.enqueue()
        await reaches(app, job, "succeeded")
        await asyncio.sleep(0.1)  # a few flushes, all in vain
    await hand.run(SPOILT[database_url[:6]][1])
    await hand.close()
    assert await app.work(until_idle=True) == 0
    assert (await counted(await app.open())).total(metrics.CLAIM_CALLS, outcome="jobs") >= 1

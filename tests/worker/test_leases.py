"""The lease keeper beside a real store: it renews, reports, gives up in time, and ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Job, Store, open_store
from keptwork.workers.lease_renewer import Lease, LeaseKeeper, Token
from tests.conformance.stage import claim, entity, eventually, moved, queued, worker
from tests.support import postgres_server

pytestmark = pytest.mark.acceptance

SECOND = 1_000_000


class Reports:
    """What a keeper said."""

    def __init__(self) -> None:
        self.lost: dict[Token, float] = {}
        self.stops: set[Token] = set()

    def lose(self, tokens: set[Token]) -> None:
        self.lost |= dict.fromkeys(tokens, time.monotonic())

    async def has_lost(self) -> bool:
        return bool(self.lost)

    async def has_stops(self) -> bool:
        return bool(self.stops)


@contextmanager
def keeper(url: str, owner: int) -> Iterator[tuple[LeaseKeeper, Reports]]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        store = await open_store(url)
        try:
            yield store
        finally:
            await store.close()

    reports = Reports()
    kept = LeaseKeeper(opened, owner, reports.lose, reports.stops.update)
    kept.start()
    try:
        yield kept, reports
    finally:
        kept.stop()
        assert not kept._thread.is_alive()


async def running(store: Store, owner: int, number: int = 1, lease_us: int = SECOND) -> list[Job]:
    await queued(store, number)
    return await claim(store, owner, number, lease_us=lease_us, start=True)


async def lease_end(store: Store, job: Job) -> int:
    return int((await entity(store, JOB, job.id))["lease_until"])


def test_a_lease_is_renewed_at_its_half_and_given_up_before_its_end() -> None:
    lease = Lease(SECOND, 0.0)
    for length_us, renew_at, give_up_at in [(SECOND, 10.5, 10.9), (60 * SECOND, 40, 64), (120 * SECOND, 40, 118)]:
        lease.begin(10.0, length_us)
        assert (lease.renew_at, lease.give_up_at) == (renew_at, give_up_at)


async def test_leases_outlive_their_length_and_each_renewal_comes_at_the_half(store: Store, database_url: str) -> None:
    owner = await worker(store)
    with keeper(database_url, owner) as (kept, reports):
        at = time.monotonic()
        (job,) = await running(store, owner)
        kept.hold([job], SECOND, at)
        ends = [await lease_end(store, job)]

        async def renewed_thrice() -> bool:
            if (end := await lease_end(store, job)) != ends[-1]:
                ends.append(end)
            return len(ends) > 3

        await eventually(renewed_thrice)
        assert await store.overdue(10) == []
    assert not reports.lost
    assert all(0.45 * SECOND < later - sooner < 0.9 * SECOND for sooner, later in pairwise(ends))


async def test_a_renewal_asks_for_the_lease_of_the_jobs_own_kind(store: Store, database_url: str) -> None:
    owner = await worker(store)
    with keeper(database_url, owner) as (kept, _):
        (job,) = await running(store, owner)
        kept.hold([job], SECOND, time.monotonic(), {"kind": 50 * SECOND})

        async def long() -> bool:
            return await lease_end(store, job) > await store.now() + 40 * SECOND

        await eventually(long)


async def test_a_job_that_was_taken_away_is_reported_and_no_other(store: Store, database_url: str) -> None:
    owner = await worker(store)
    with keeper(database_url, owner) as (kept, reports):
        taken, stays = await running(store, owner, 2, 60 * SECOND)
        kept.hold([taken, stays], 60 * SECOND, time.monotonic())
        await moved(store, JOB, taken.id, "cancel")
        await eventually(reports.has_lost)
        assert set(reports.lost) == {(taken.id, taken.epoch)}
        assert kept.holds(stays)
        assert not kept.holds(taken)


async def test_a_stop_request_is_reported(store: Store, database_url: str) -> None:
    owner = await worker(store)
    with keeper(database_url, owner) as (kept, reports):
        asked, other = await running(store, owner, 2, 60 * SECOND)
        kept.hold([asked, other], 60 * SECOND, time.monotonic())
        assert await store.request_stop(asked.id, 1)
        await eventually(reports.has_stops)
        assert reports.stops == {(asked.id, asked.epoch)}
        assert not reports.lost


async def test_settling_one_claim_of_a_job_does_not_drop_the_lease_of_its_next(store: Store, database_url: str) -> None:
    owner = await worker(store)
    with keeper(database_url, owner) as (kept, reports):
        (first,) = await running(store, owner)
        kept.hold([first], SECOND, time.monotonic())
        await moved(store, JOB, first.id, "release", by="holder")
        (second,) = await claim(store, owner, start=True, lease_us=SECOND)
        kept.hold([second], SECOND, time.monotonic())
        kept.release([(first.id, first.epoch)])
        assert kept.holds(second)
        end = await lease_end(store, second)

        async def renewed() -> bool:
            return await lease_end(store, second) > end

        await eventually(renewed)
        assert (second.id, second.epoch) not in reports.lost


async def test_a_job_that_came_back_under_a_new_epoch_is_lost_under_the_old_one(
    store: Store, database_url: str
) -> None:
    owner = await worker(store)
    with keeper(database_url, owner) as (kept, reports):
        (first,) = await running(store, owner, 1, 60 * SECOND)
        kept.hold([first], 60 * SECOND, time.monotonic())
        await moved(store, JOB, first.id, "release")
        (second,) = await claim(store, owner, start=True)
        kept.hold([second], 60 * SECOND, time.monotonic())
        await eventually(reports.has_lost)
        assert set(reports.lost) == {(first.id, first.epoch)}
        assert kept.holds(second)


async def test_a_settled_job_is_not_looked_after(store: Store, database_url: str) -> None:
    owner = await worker(store)
    with keeper(database_url, owner) as (kept, reports):
        settled, marker = await running(store, owner, 2)
        kept.hold([settled, marker], SECOND, time.monotonic())
        kept.release([(settled.id, settled.epoch)])
        ends = [await lease_end(store, job) for job in (settled, marker)]

        async def marker_renewed() -> bool:
            return await lease_end(store, marker) > ends[1]

        await eventually(marker_renewed)
        assert await lease_end(store, settled) == ends[0]
        assert not reports.lost


async def test_short_jobs_cost_no_connection(store: Store) -> None:
    opened = threading.Event()

    @asynccontextmanager
    async def refuses() -> AsyncIterator[Store]:
        opened.set()
        yield store

    kept = LeaseKeeper(refuses, 1, lambda _: None, lambda _: None)
    kept.start()
    owner = await worker(store)
    (job,) = await running(store, owner, 1, 60 * SECOND)
    kept.hold([job], 60 * SECOND, time.monotonic())
    kept.release([(job.id, job.epoch)])
    await asyncio.to_thread(kept.stop)
    assert not opened.is_set()


async def test_a_database_that_is_gone_costs_the_lease_before_it_ends() -> None:
    with postgres_server.start() as server:
        url = server.create_database()
        store = await open_store(url)
        owner = await worker(store)
        with keeper(url, owner) as (kept, reports):
            (job,) = await running(store, owner, 1, 2 * SECOND)
            at = time.monotonic()
            kept.hold([job], 2 * SECOND, at)
            await asyncio.to_thread(server.kill9)
            await eventually(reports.has_lost)
            assert 1.7 < reports.lost[job.id, job.epoch] - at < 2.0
            assert not kept.holds(job)
        await asyncio.wait_for(store.close(), 10)


async def test_a_database_that_falls_silent_costs_the_lease_before_it_ends(postgres_copy: str) -> None:
    """The rows are locked by somebody who never lets go: no error, no answer."""
    store, blocker = await open_store(postgres_copy), await asyncpg.connect(postgres_copy)
    owner = await worker(store)
    with keeper(postgres_copy, owner) as (kept, reports):
        (job,) = await running(store, owner, 1, 2 * SECOND)
        transaction: Any = blocker.transaction()
        await transaction.start()
        await blocker.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        at = time.monotonic()
        kept.hold([job], 2 * SECOND, at)
        await eventually(reports.has_lost)
        assert 1.7 < reports.lost[job.id, job.epoch] - at < 2.0
    await transaction.rollback()
    await blocker.close()
    await store.close()

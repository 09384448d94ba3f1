"""A PostgreSQL server that crashes in the middle of the work: nothing is lost, nothing is done twice in the log."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import asyncpg
import pytest

from keptwork import Keptwork
from keptwork.audit import verify
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.errors import StoreError
from keptwork.store.postgres.connections_server import explained
from keptwork.store.url import database_url
from tests.conformance.stage import log
from tests.support import postgres_server

pytestmark = pytest.mark.acceptance

JOBS = 2_000


async def test_a_crash_of_the_server_loses_no_job_and_settles_each_once() -> None:
    with postgres_server.start() as server:
        async with Keptwork(server.create_database()) as app:
            seen: Counter[str] = Counter()
            halfway, resumed = asyncio.Event(), asyncio.Event()
            restarted = False

            @app.job(lease="2s")
            async def one(ctx: Context) -> None:
                seen[ctx.job_id] += 1
                await asyncio.sleep(0)
                if seen.total() >= JOBS // 4:
                    halfway.set()
                if restarted:
                    resumed.set()

            handles = await app.enqueue_many(one, [{}] * JOBS)
            work = asyncio.create_task(app.work(concurrency=50))
            await asyncio.wait_for(halfway.wait(), 60)
            await asyncio.to_thread(server.kill9)
            assert len(seen) < JOBS  # or the crash came too late to matter
            await asyncio.to_thread(server.restart)
            back, restarted = time.monotonic(), True
            await asyncio.wait_for(resumed.wait(), 60)
            assert time.monotonic() - back < 10
            await _all_ended(app)
            app.stop()
            await asyncio.wait_for(work, 60)

            store = await app.open()
            events = await log(store, entity="job", type="job_succeeded")
            assert Counter(event.entity_id for event in events) == Counter(handle.key for handle in handles)
            rows = await store.rows(JOB, [handle.key for handle in handles], ("state",))
            assert Counter(found["state"] for found in rows) == {"succeeded": JOBS}
            assert len(seen) == JOBS
            verdict = await verify.verify(store)
            assert verdict.clean, verdict.problems


async def _all_ended(app: Keptwork) -> None:
    """Until every job has ended; jobs of a claim whose answer was lost come back when their lease is over."""
    store = await app.open()
    async with asyncio.timeout(60):
        while len(await log(store, entity="job", type="job_succeeded")) < JOBS:  # noqa: ASYNC110 - happens in a server
            await asyncio.sleep(0.05)


async def test_what_the_driver_says_when_a_server_dies_at_the_wrong_moment_is_an_outage_like_any_other() -> None:
    with (
        pytest.raises(StoreError, match="the connection broke in the middle of a call"),
        explained(database_url("postgresql://db/work")),
    ):
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")

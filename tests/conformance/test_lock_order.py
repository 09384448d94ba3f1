"""On PostgreSQL, leases are renewed and steps are kept beside other transactions without waiting in a circle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from keptwork.errors import StoreError
from keptwork.store import Job, Store, open_store
from keptwork.store.contract.checkpoints import Save
from tests.conformance.by_hand import hand_on
from tests.conformance.stage import LEASE, claim, eventually, queued, worker
from tests.support.broken_sql import leave_out

Call = Callable[[Store, list[Job]], Awaitable[Any]]


async def renews(store: Store, jobs: list[Job]) -> Any:
    return await store.renew(jobs[0].owner or 0, [(job.id, job.epoch) for job in jobs], LEASE)


async def keeps_steps(store: Store, jobs: list[Job]) -> Any:
    return await store.checkpoint([Save(job, "step", "1") for job in reversed(jobs)])


async def beside_locks(url: str, call: Call, *order: int) -> Any:
    """Make the call while another transaction locks two running jobs: the first before the call, the second when the
    call waits."""
    store, hand = await open_store(url), await hand_on(url)
    try:
        owner = await worker(store)
        await queued(store, 2)
        jobs = sorted(await claim(store, owner, start=True), key=lambda job: job.id)
        locks = [f"SELECT 1 FROM jobs WHERE id = {jobs[place].id} FOR NO KEY UPDATE" for place in order]

        async def waits() -> bool:
            return bool(await hand.run("SELECT 1 FROM pg_locks WHERE NOT granted"))

        await hand.run("BEGIN")
        await hand.run(locks[0])
        called = asyncio.ensure_future(call(store, jobs))
        await eventually(waits)
        try:
            await hand.run(locks[1])
        finally:
            await hand.run("ROLLBACK")
            said = (await asyncio.gather(called, return_exceptions=True))[0]
        if isinstance(said, BaseException):
            raise said
        return said
    finally:
        await hand.close()
        await store.close()


async def test_renewal_that_waits_for_one_job_holds_no_other(emptied_database: str) -> None:
    assert await beside_locks(emptied_database, renews, 1, 0) == []


async def test_steps_of_several_jobs_are_kept_in_the_order_of_the_jobs(emptied_database: str) -> None:
    assert await beside_locks(emptied_database, keeps_steps, 0, 1) == ["1", "1"]


async def test_renewal_that_waits_while_it_holds_jobs_is_caught(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, "renew_free", "SKIP LOCKED")
    with pytest.raises((StoreError, asyncpg.DeadlockDetectedError), match="deadlock detected"):
        await beside_locks(emptied_database, renews, 1, 0)


async def test_steps_that_are_kept_in_any_order_are_caught(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "keptwork.store.postgres.side_writes_checkpoints.sorted", lambda saves, key: saves, raising=False
    )
    with pytest.raises((StoreError, asyncpg.DeadlockDetectedError), match="deadlock detected"):
        await beside_locks(emptied_database, keeps_steps, 0, 1)

"""Waiting for the ends of jobs: many at once, some of whom leave, and a database that fails meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.errors import StoreError
from keptwork.jobs.results_endings import Endings
from keptwork.store import Store, open_store
from tests.conformance.stage import moved, queued


async def test_everyone_is_told_of_their_own_job_and_those_who_left_are_not_missed(store: Store) -> None:
    first, second, third = await queued(store, 3)
    endings = Endings(store)
    waits = {key: asyncio.create_task(endings.reached(key)) for key in (first, second, third)}
    again = asyncio.create_task(endings.reached(first))
    await asyncio.sleep(0)
    waits[third].cancel()
    await moved(store, JOB, first, "cancel")
    await asyncio.wait_for(asyncio.gather(waits[first], again), 60)
    assert not waits[second].done()
    await moved(store, JOB, second, "cancel")
    await asyncio.wait_for(waits[second], 60)
    assert (endings._watch, endings._waiting) == (None, {})


async def test_a_job_that_is_no_longer_there_is_not_waited_for(store: Store) -> None:
    await asyncio.wait_for(Endings(store).reached(12345), 60)


async def test_everyone_hears_of_a_database_that_fails(sqlite_url: str) -> None:
    store = await open_store(sqlite_url)
    keys = await queued(store, 2)
    endings = Endings(store)
    waits = [asyncio.create_task(endings.reached(key)) for key in keys]
    await asyncio.sleep(0)
    await store.close()
    for wait in waits:
        with pytest.raises((StoreError, RuntimeError)):
            await asyncio.wait_for(wait, 60)


async def test_waiting_goes_on_after_everybody_had_left(store: Store) -> None:
    (key,) = await queued(store)
    endings = Endings(store)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(endings.reached(key), 0.02)
    await moved(store, JOB, key, "cancel")
    await asyncio.wait_for(endings.reached(key), 60)


async def test_who_comes_in_the_moment_the_last_one_leaves_is_told_too(store: Store) -> None:
    first, second = await queued(store, 2)
    await moved(store, JOB, first, "cancel")
    endings = Endings(store)
    await asyncio.wait_for(endings.reached(first), 60)
    waiting = asyncio.create_task(endings.reached(second))
    await moved(store, JOB, second, "cancel")
    await asyncio.wait_for(waiting, 60)


async def test_nothing_is_asked_about_a_job_that_a_worker_here_works_on(store: Store) -> None:
    (key,) = await queued(store)
    endings = Endings(store)
    asked: list[int] = []

    def works_on(tenant_id: int, job: int) -> bool:
        asked.append(job)
        return tenant_id == 1 and len(asked) < 3

    endings.workers_here.append(works_on)
    assert await asyncio.wait_for(endings.heard_of(1, key, None), 60) is None
    assert asked == [key] * 3
    assert await asyncio.wait_for(endings.heard_of(2, key, None), 60) is None
    assert len(asked) == 4
    assert (endings._watch, endings._waiting) == (None, {})

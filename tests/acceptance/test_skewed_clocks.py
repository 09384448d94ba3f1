"""Workers whose wall clocks are an hour wrong: leases go by the database's clock, so none of them ends early."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.core import ids
from keptwork.core.lifecycles import WORKER
from keptwork.store import EventFilter, open_store
from tests.acceptance.chaos import Stage, stage, until
from tests.acceptance.observer import type_in

HOUR = 3600
SKEWED = "tests.acceptance.skewed_worker"
LEASE = "3s"
LONG_ENOUGH_TO_RENEW = 3.0

# A worker that decides by a clock of its own: its sessions find this function before the database's.
OWN_CLOCK = f"""
CREATE SCHEMA own_clock;
CREATE FUNCTION own_clock.keptwork_now() RETURNS bigint LANGUAGE sql VOLATILE
    AS 'SELECT public.keptwork_now() + {HOUR} * 1000000::bigint';
"""


def work_under_wrong_clocks(on: Stage, workers: int, jobs: int) -> None:
    """A quarter of the workers is an hour ahead, a quarter an hour behind; some jobs need their lease renewed."""
    on.fleet.start(workers // 4, SKEWED, str(HOUR))
    on.fleet.start(workers // 4, SKEWED, str(-HOUR))
    on.fleet.start(workers // 2)
    on.feed(jobs, 0.3)
    on.feed(workers * 2, LONG_ENOUGH_TO_RENEW)
    on.wait_until_done()


def check(on: Stage, workers: int, jobs: int) -> None:
    work_under_wrong_clocks(on, workers, jobs)
    wrong_clocks = asyncio.run(clocks(on.url))
    died = on.fleet.bury_dead()
    found = on.examine()
    print(f"\n{workers} workers with clocks wrong by {wrong_clocks} s, {found}")
    assert [round(seconds, -2) for seconds in wrong_clocks] == sorted(
        [-HOUR] * (workers // 4) + [0] * (workers // 2) + [HOUR] * (workers // 4)
    )
    assert found.wrong == []
    assert found.expired_under_the_living == 0
    assert died == []


async def expired(url: str) -> int:
    store = await open_store(url)
    events = await store.events(EventFilter(type="job_lease_expired"))
    await store.close()
    return len(events)


async def clocks(url: str) -> list[int]:
    """How wrong each worker's clock is: it makes its own id from it, and the database says when the row came."""
    store = await open_store(url)
    keys = {event.entity_id for event in await store.events(EventFilter(entity="worker"), limit=5000)}
    rows = await store.rows(WORKER, sorted(keys), ("id", "created_at"))
    await store.close()
    milliseconds = [(row["id"] >> ids.COUNTER_BITS) + ids.EPOCH_MS - row["created_at"] // 1000 for row in rows]
    return sorted(round(wrong / 1000) for wrong in milliseconds)


@pytest.mark.timeout(120)
def test_4_workers_half_of_them_an_hour_wrong_end_no_lease_early(postgres_copy: str) -> None:
    with stage(postgres_copy, seed=7, lease=LEASE) as on:
        check(on, workers=4, jobs=200)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_8_workers_half_of_them_an_hour_wrong_end_no_lease_early_in_5000_jobs(postgres_copy: str) -> None:
    with stage(postgres_copy, seed=8, lease=LEASE) as on:
        check(on, workers=8, jobs=5_000)


@pytest.mark.timeout(120)
def test_a_worker_that_goes_by_its_own_clock_is_caught_by_the_same_check(postgres_copy: str) -> None:
    with stage(postgres_copy, seed=9, lease=LEASE) as on:
        asyncio.run(type_in(postgres_copy, OWN_CLOCK))
        on.fleet.start(1)
        on.fleet.url = f"{postgres_copy}?search_path=own_clock,public"
        on.fleet.start(1)
        on.feed(40, 1.5)
        until(lambda: asyncio.run(expired(postgres_copy)) > 0, patience=20)
        found = on.examine()
    print(f"\nby its own clock: {found}")
    assert found.expired_under_the_living > 0

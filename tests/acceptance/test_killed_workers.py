"""Workers killed with -9 at any moment: no job is lost, none has two effects, and what they held is soon taken over."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from detent.lifecycle import JOB
from detent.store import EventFilter, open_store
from tests.acceptance.chaos import Stage, enqueue, stage, unfinished, until

LEASE_SECONDS = 2.0
RECOVERY_SECONDS = LEASE_SECONDS + 2.0
LONGEST_WORK = 0.1


def kill_at_random(on: Stage, workers: int, kills: int, jobs: int) -> None:
    """Feeds jobs in portions and kills a worker in the middle of each; a new process takes its place."""
    on.fleet.start(workers)
    until(lambda: _all_registered(on, workers))
    for portion in range(kills):
        on.feed(jobs * (portion + 1) // kills - jobs * portion // kills, LONGEST_WORK)
        time.sleep(on.chance.uniform(0, 0.3))
        on.fleet.kill(on.chance.choice(on.fleet.members))
        on.fleet.start(1)
        on.wait_for_room(jobs // kills // 2)
    on.wait_until_done()


def check(on: Stage, workers: int, kills: int, jobs: int) -> None:
    kill_at_random(on, workers, kills, jobs)
    died = on.fleet.bury_dead()
    found = on.examine()
    print(f"\n{on.kind}: {workers} workers, {kills} kills, {found}")
    assert found.wrong == []
    assert died == []
    assert found.recoveries, "no kill hit a worker that held a job"
    assert found.recovery_p99 <= RECOVERY_SECONDS


@pytest.mark.timeout(120)
def test_killing_4_workers_10_times_loses_and_doubles_none_of_600_jobs(database_url: str) -> None:
    with stage(database_url, seed=1) as on:
        check(on, workers=4, kills=10, jobs=600)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_killing_8_workers_200_times_loses_and_doubles_none_of_20000_jobs(database_url: str) -> None:
    with stage(database_url, seed=2) as on:
        check(on, workers=8, kills=200, jobs=20_000)


def test_a_job_that_kills_its_worker_ends_as_a_dead_letter(database_url: str) -> None:
    with stage(database_url, seed=3, lease="1s") as on:
        (id,) = asyncio.run(enqueue(database_url, "poison", [{"number": 0}]))
        on.fleet.start(1)
        deaths = 0

        def ended() -> bool:
            nonlocal deaths
            dead = len(on.fleet.bury_dead())
            deaths += dead
            on.fleet.start(dead)
            return not asyncio.run(unfinished(database_url, [id]))

        assert until(ended, patience=30)
        runs = [(delivery.token, delivery.pid) for delivery in on.sink.deliveries]
        asyncio.run(check_dead_letter(database_url, id))
    assert deaths == 2
    assert [token for token, _ in runs] == [0, 1]
    assert len({pid for _, pid in runs}) == 2


async def check_dead_letter(url: str, id: int) -> None:
    store = await open_store(url)
    (row,) = await store.rows(JOB, [id])
    events = await store.events(EventFilter(entity=JOB.name, entity_id=id))
    await store.close()
    detail = row["detail"] if isinstance(row["detail"], dict) else json.loads(row["detail"])
    started = [event for event in events if event.trigger == "start"]
    assert (row["state"], row["reason"], detail["stage"]) == ("dead_lettered", "exhausted_retries", "exec")
    assert row["error"] == "the lease of its worker ended in attempt 2 of 2"
    assert (row["attempts"], len(started)) == (2, 2)
    assert f"w:{row['owner']}" == started[-1].actor


def _all_registered(on: Stage, workers: int) -> bool:
    async def registered() -> int:
        store = await open_store(on.url)
        events = await store.events(EventFilter(entity="worker"))
        await store.close()
        return len(events)

    return asyncio.run(registered()) >= workers

"""Workers killed with -9 at any moment: no job is lost, none has two effects, and what they held is soon taken over."""

from __future__ import annotations

import asyncio
import json
import time
from math import inf

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import EventFilter, open_store
from tests.acceptance.chaos import Stage, enqueue, stage, unfinished, until

LEASE_SECONDS = 2.0
RECOVERY_SECONDS = LEASE_SECONDS + 2.0
LONGEST_WORK = 0.1


def kill_at_random(on: Stage, workers: int, kills: int, jobs: int) -> None:
    """All jobs at once, then a kill whenever a share of them has been claimed; a new process takes the victim's place.

    The last kill comes while a tenth still waits: what is recovered must not wait behind the whole backlog.
    """
    on.feed(jobs, LONGEST_WORK)
    on.fleet.start(workers)
    until(lambda: _all_registered(on, workers))
    for number in range(1, kills + 1):
        on.wait_for_backlog(jobs - jobs * 9 * number // (10 * kills))
        time.sleep(on.chance.uniform(0, 0.1))
        on.fleet.kill(on.chance.choice(on.fleet.members))
        on.fleet.start(1)


def check(on: Stage, workers: int, kills: int, jobs: int) -> None:
    kill_at_random(on, workers, kills, jobs)
    backlog = on.backlog
    on.wait_until_done()
    died = on.fleet.bury_dead()
    found = on.examine()
    print(f"\n{on.kind}: {workers} workers, {kills} kills, {backlog} jobs waiting at the last one, {found}")
    assert found.wrong == []
    assert died == []
    assert backlog, "the kills went on when there was nothing left to do"
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


def test_jobs_of_killed_workers_that_nobody_reaps_are_lost_to_the_same_check(sqlite_url: str) -> None:
    with stage(sqlite_url, seed=1, twin="no-reaper") as on:
        kill_at_random(on, workers=2, kills=3, jobs=60)
        on.wait_until_done(RECOVERY_SECONDS)
        lost = on.examine().lost
        assert any(job.endswith(("is assigned", "is running")) for job in lost), lost


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_recovered_jobs_that_go_to_the_end_of_the_queue_are_too_late_for_the_same_check(database_url: str) -> None:
    with stage(database_url, seed=2, twin="loses-place") as on:
        kill_at_random(on, workers=4, kills=10, jobs=4_000)
        on.wait_until_done()
        found = on.examine()
    print(f"\n{on.kind}, recovered jobs at the end of the queue: {found}")
    assert found.recovery_p99 > RECOVERY_SECONDS


def test_a_job_that_kills_its_worker_ends_as_a_dead_letter(database_url: str) -> None:
    with stage(database_url, seed=3, lease="1s") as on:
        ids = [add_poison(on, 0)]
        deaths = replace_the_dead(on, ids, workers=1, patience=30)
        runs = [(delivery.token, delivery.pid) for delivery in on.sink.deliveries]
        asyncio.run(check_dead_letters(database_url, ids))
    assert deaths == 2
    assert [token for token, _ in runs] == [0, 1]
    assert len({pid for _, pid in runs}) == 2


def test_a_job_that_kills_worker_after_worker_is_caught_by_the_same_check(database_url: str) -> None:
    with stage(database_url, seed=8, lease="1s", twin="forgiving") as on:
        ids = [add_poison(on, 0)]
        with pytest.raises(AssertionError):
            replace_the_dead(on, ids, workers=1, patience=7)
        deaths = len({delivery.pid for delivery in on.sink.deliveries})
    assert deaths > 2


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_20_jobs_that_kill_their_workers_end_as_dead_letters_in_front_of_20000_others(database_url: str) -> None:
    with stage(database_url, seed=7) as on:
        ids = []
        for number in range(20):
            on.feed(450, LONGEST_WORK)
            ids.append(add_poison(on, number))
        on.feed(11_000, LONGEST_WORK)
        deaths = replace_the_dead(on, ids, workers=8, patience=300)
        backlog = on.backlog
        on.wait_until_done(patience=300)
        asyncio.run(check_dead_letters(database_url, ids))
        found = on.examine()
    print(f"\n{on.kind}: {len(ids)} poisonous jobs, {deaths} deaths, {backlog} jobs waiting at the last end, {found}")
    assert found.wrong == []
    # Two of them at work in one process die one death.
    assert len(ids) / 2 <= deaths <= 2 * len(ids)
    assert backlog
    assert found.recovery_p99 <= RECOVERY_SECONDS


def add_poison(on: Stage, number: int) -> int:
    """A job that kills its worker."""
    return asyncio.run(enqueue(on.url, "poison", [{"number": number}]))[0]


def replace_the_dead(on: Stage, ids: list[int], workers: int, patience: float) -> int:
    """Starts workers and a new one for each that dies, until these jobs have ended; returns how many died."""
    on.fleet.start(workers)
    deaths = 0

    def ended() -> bool:
        nonlocal deaths
        dead = on.fleet.bury_dead()
        deaths += len(dead)
        on.fleet.note_absence([member.pid for member in dead], time.time(), inf)
        on.fleet.start(len(dead))
        return not asyncio.run(unfinished(on.url, ids))

    assert until(ended, patience)
    return deaths


async def check_dead_letters(url: str, ids: list[int]) -> None:
    for id in ids:
        await check_dead_letter(url, id)


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

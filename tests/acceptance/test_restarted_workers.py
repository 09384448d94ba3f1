"""Workers restarted under the names they had: what their earlier lives held is reclaimed all the same."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from keptwork.core.lifecycles import WORKER
from keptwork.store import EventFilter, open_store
from tests.acceptance.chaos import Stage, stage, until
from tests.acceptance.examination import Findings

LEASE_SECONDS = 2.0
RECOVERY_SECONDS = LEASE_SECONDS + 2.0
LONGEST_WORK = 0.3
ENOUGH_JOBS = 60
NAMES = ("ann", "bob", "cay", "dan")


def restart_again_and_again(on: Stage, names: tuple[str, ...], restarts: int, patience: float = 60.0) -> None:
    """Kills a worker in the middle of its jobs and starts it anew under its own name."""
    for name in names:
        on.fleet.start_as(name)
    for _ in range(restarts):
        victim = on.chance.choice(on.fleet.members)
        until(partial(at_work, on, victim.pid))
        time.sleep(on.chance.uniform(0, LONGEST_WORK))
        on.fleet.kill(victim)
        on.fleet.start_as(victim.name)
    on.wait_until_done(patience)


def at_work(on: Stage, pid: int) -> bool:
    """Whether that process has begun a job; there are always some to begin."""
    if on.backlog < ENOUGH_JOBS:
        on.feed(ENOUGH_JOBS, LONGEST_WORK)
    return any(delivery.pid == pid for delivery in list(on.sink.deliveries))


def check(on: Stage, restarts: int) -> Findings:
    restart_again_and_again(on, NAMES, restarts)
    died = on.fleet.bury_dead()
    found = on.examine()
    lives = asyncio.run(incarnations(on.url))
    print(f"\n{on.kind}: {restarts} restarts of {len(NAMES)} names, {found}")
    assert found.wrong == []
    assert died == []
    assert len(lives) == len(set(lives)) == restarts + len(NAMES)
    assert {name for name, _ in lives} == set(NAMES)
    assert len(found.recoveries) >= restarts, "hardly a kill hit a worker that held a job"
    return found


async def incarnations(url: str) -> list[tuple[str, str]]:
    """The name and the incarnation of every worker that ever registered."""
    store = await open_store(url)
    log = await store.events(EventFilter(entity=WORKER.name, type="worker_register"), limit=5000)
    rows = await store.rows(WORKER, [event.entity_id for event in log], ("name", "incarnation"))
    await store.close()
    return [(row["name"], row["incarnation"]) for row in rows]


def test_workers_restarted_4_times_under_their_names_leave_no_orphans(database_url: str) -> None:
    with stage(database_url, seed=10) as on:
        check(on, restarts=4)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_workers_restarted_50_times_under_their_names_leave_no_orphans(database_url: str) -> None:
    with stage(database_url, seed=11) as on:
        found = check(on, restarts=50)
    assert found.recovery_p99 <= RECOVERY_SECONDS


def test_workers_that_take_their_name_for_the_owner_are_caught_by_the_same_check(sqlite_url: str) -> None:
    check_twin(sqlite_url)


@pytest.mark.chaos
def test_workers_that_take_their_name_for_the_owner_are_caught_by_the_same_check_on_postgres(
    postgres_copy: str,
) -> None:
    check_twin(postgres_copy)


def check_twin(url: str) -> None:
    with stage(url, seed=12, twin="same-name") as on:
        restart_again_and_again(on, NAMES[:1], 1, patience=9)
        lost = on.examine().lost
        assert any(job.endswith(("is assigned", "is running")) for job in lost), lost

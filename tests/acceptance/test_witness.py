"""Moves counted by those who asked for them, under chaos: as many as there are events, each the same, none backward."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from keptwork.store import Event, EventFilter, NewJob, open_store
from tests.acceptance.chaos import Stage, stage
from tests.acceptance.examination import read_log
from tests.acceptance.observer import observed
from tests.acceptance.witness import Made, Statement, Witness, account, made_by, statement

LEASE_SECONDS = 2.0


def work_under_chaos(on: Stage, folder: Path, workers: int, jobs: int, kills: int, stops: int) -> None:
    """Jobs of every mood, while workers are killed and replaced, or stopped for longer than their leases."""
    on.ids = asyncio.run(enqueue(on.url, folder, jobs))
    on.fleet.start(workers)
    faults = ["kill"] * kills + ["stop"] * stops
    on.chance.shuffle(faults)
    for number, fault in enumerate(faults, 1):
        on.wait_for_backlog(jobs - jobs * 9 * number // (10 * len(faults)))
        victim = on.chance.choice(on.fleet.members)
        if fault == "kill":
            on.fleet.kill(victim)
            on.fleet.start(1)
        else:
            victim.send(signal.SIGSTOP)
            time.sleep(1.2 * LEASE_SECONDS)
            victim.send(signal.SIGCONT)
    on.wait_until_done()
    on.fleet.close()


async def enqueue(url: str, folder: Path, jobs: int) -> list[int]:
    store = Witness(await open_store(url), folder)
    ids = await store.enqueue(
        [NewJob("moody", json.dumps({"number": number}), max_attempts=2) for number in range(jobs)]
    )
    await store.close()
    return ids


async def read(url: str) -> list[Event]:
    store = await open_store(url)
    events = await read_log(store, EventFilter())
    await store.close()
    return events


def check(url: str, folder: Path, **faults: int) -> tuple[Statement, list[Event]]:
    with stage(url, seed=30, WITNESS=str(folder)) as on:
        work_under_chaos(on, folder, **faults)
        told, events, seen = statement(folder), asyncio.run(read(url)), asyncio.run(observed(url))
    found = account(told, events)
    ends = {event.to_state for event in events if event.entity == "job"}
    print(f"\n{on.kind}: {faults}, {found}, {seen} moves of jobs seen by triggers, states {', '.join(sorted(ends))}")
    assert found.wrong == []
    assert seen == sum(event.entity == "job" for event in events)
    assert {"succeeded", "failed", "cancelled", "dead_lettered"} <= ends
    assert found.heard > 0.9 * found.events, "too many calls were never answered for the count to mean much"
    return told, events


def test_the_moves_of_500_jobs_under_chaos_are_the_events_and_a_changed_log_is_noticed(
    database_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "witness"
    folder.mkdir()
    told, events = check(database_url, folder, workers=4, jobs=500, kills=3, stops=0)
    heard = next(event for event in events if made_by(event) in told.heard)
    assert wrong(told, [event for event in events if event is not heard])
    assert wrong(told, [*events, heard])
    assert wrong(told, [*events, heard._replace(seq=99)])
    assert wrong(told, [event._replace(epoch=99) if event is heard else event for event in events])
    backwards = Made("job", heard.entity_id, 98, 0, "expire", "queued")
    told.heard |= {backwards, backwards._replace(seq=97, state="succeeded")}
    assert account(told, events).backward


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_moves_of_10000_jobs_under_chaos_are_the_events(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "witness"
    folder.mkdir()
    check(database_url, folder, workers=8, jobs=10_000, kills=60, stops=20)


def wrong(told: Statement, events: list[Event]) -> list[str]:
    return account(told, events).wrong

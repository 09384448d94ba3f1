"""Breakers under fire: one probe in the whole fleet however many ask, a killed prober that is replaced, and held jobs
that spend no attempt and all run in the end. Each check has a twin it must catch."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from keptwork import Keptwork
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import WORKER
from keptwork.job import DeclaredJob
from keptwork.jobs import breakers
from keptwork.jobs.breakers import Answer
from keptwork.store import Event, EventFilter, NewJob, open_store
from keptwork.store.contract.breakers import BreakerView
from tests.acceptance import breaker_program, probers
from tests.acceptance.breaker_program import DOWN, HANGS, WORKS
from tests.acceptance.effects import Delivery, Sink
from tests.acceptance.fleet import Fleet
from tests.acceptance.observer import drop_breaker_guards, type_in
from tests.acceptance.probers import API

PROGRAM = "tests.acceptance.breaker_program"
LEASE_SECONDS = 2.0

# --- one probe


async def trip(url: str) -> None:
    store = await open_store(url)
    (job,) = await probers.claimed(store, 1_000_000, 1)
    assert (await breakers.admit(store, job, API)).answer is Answer.GO
    await probers.tell(store, job)
    await store.close()


async def moves_of_breaker(url: str) -> list[tuple[str, str | None]]:
    """In the order they were made: who waited for the lock may have begun its transaction before who had it."""
    store = await open_store(url)
    found = await store.events(EventFilter(entity="breaker"), limit=100_000)
    await store.close()
    return [(event.trigger, json.loads(event.payload or "{}").get("job")) for event in sorted(found, key=_seq)]


def _seq(event: Event) -> int:
    return event.seq


def race(url: str, processes: int, rounds: int, folder: Path, twin: str = "") -> tuple[list[str], int, float]:
    """Which jobs were told that they are the probe, how often two met, and how long it took."""
    asyncio.run(trip(url))
    if twin:
        asyncio.run(drop_breaker_guards(url))
    numbers = str(processes), str(rounds), str(folder)
    command = [sys.executable, "-m", "tests.acceptance.probers", url, *numbers, *([twin] * bool(twin))]
    began = time.monotonic()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=250)
    answer = json.loads(done.stdout)
    assert answer["failed"] == 0
    probes = [public_id("job", id) for told in answer["told"] for id in told["probes"]]
    return probes, sum(told["met"] for told in answer["told"]), time.monotonic() - began


def check_probes(url: str, processes: int, rounds: int, folder: Path, twin: str = "") -> None:
    probes, met, seconds = race(url, processes, rounds, folder, twin)
    moves = asyncio.run(moves_of_breaker(url))
    logged = [job for trigger, job in moves if trigger == "probe"]
    figures = f"{processes} processes asked {processes * rounds} times, {len(probes)} probes, {met} met another"
    print(f"\n{urlsplit(url).scheme}: {figures}, {seconds:.1f} s")
    assert len(probes) > 1
    assert met == 0, f"{met} met another"
    assert Counter(logged) == Counter(probes)
    after_trip = [trigger for trigger, _ in moves[2:]]
    assert all(pair in (("probe", "reopen"), ("reopen", "probe")) for pair in pairwise(after_trip))


def test_of_64_processes_that_ask_at_once_exactly_one_is_the_probe(database_url: str, tmp_path: Path) -> None:
    check_probes(database_url, 64, 6, tmp_path)


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_of_64_processes_that_ask_6400_times_exactly_one_at_a_time_is_the_probe(
    database_url: str, tmp_path: Path
) -> None:
    check_probes(database_url, 64, 100, tmp_path)


def test_askers_that_neither_lock_nor_compare_are_caught_by_the_same_check(database_url: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="met another"):
        check_probes(database_url, 24, 20, tmp_path, "two-probes")


# --- a prober that is killed


@pytest.fixture
def sink() -> Iterator[Sink]:
    opened = Sink()
    yield opened
    opened.close()


async def fill(url: str, jobs: int) -> None:
    app = Keptwork(url)
    breaker_program.declare(app, None)
    async with app:
        await app.enqueue_many(DeclaredJob(app, app.kinds["call"]), [{"number": number} for number in range(jobs)])


async def standing(url: str) -> BreakerView | None:
    store = await open_store(url)
    found = await store.breakers(1)
    await store.close()
    return found[0] if found else None


async def jobs_of(url: str) -> list[dict[str, Any]]:
    store = await open_store(url)
    found = await store.jobs(limit=10_000, columns=("state", "attempts", "payload"))
    await store.close()
    return found


def eventually(holds: Callable[[], bool], seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come to that"
        time.sleep(0.05)


def is_held(url: str, jobs: int) -> bool:
    found = asyncio.run(standing(url))
    return found is not None and found.row["state"] == "OPEN" and found.held == jobs


def tries_since(sink: Sink, moment: float) -> list[Delivery]:
    return [one for one in list(sink.deliveries) if one.step == "try" and one.at > moment]


def kill_prober(fleet: Fleet, sink: Sink) -> float:
    """Kills whoever tries and hangs at it, and starts another worker; when that was."""
    (prober,) = hanging(fleet, sink)
    killed_at = time.time()
    fleet.kill(next(member for member in fleet.members if member.pid == prober))
    fleet.start(1, PROGRAM)
    return killed_at


def hanging(fleet: Fleet, sink: Sink) -> set[int]:
    last = max((one.at for one in list(sink.deliveries) if one.step == "try"), default=time.time())
    here = {member.pid for member in fleet.members}
    return {one.pid for one in tries_since(sink, last - 0.001)} & here if time.time() - last > 0.7 else set()


def check_recovery(
    url: str, sink: Sink, mood: Path, *, workers: int, jobs: int, kills: int, patience: float, twin: str = ""
) -> None:
    mood.write_text(DOWN)
    asyncio.run(fill(url, jobs))
    fleet, pauses = Fleet(url, sink.port, f"{LEASE_SECONDS:g}s", twin, MOOD=str(mood)), list[float]()
    try:
        fleet.start(workers, PROGRAM)
        eventually(lambda: is_held(url, jobs), patience)
        mood.write_text(HANGS)
        for left in range(kills, 0, -1):
            eventually(lambda: bool(hanging(fleet, sink)), patience)
            mood.write_text(WORKS if left == 1 else HANGS)
            killed_at = kill_prober(fleet, sink)
            eventually(lambda at=killed_at: bool(tries_since(sink, at)), patience)  # type: ignore[misc]
            pauses.append(tries_since(sink, killed_at)[0].at - killed_at)
        eventually(lambda: all(job["state"] == "succeeded" for job in asyncio.run(jobs_of(url))), patience)
    finally:
        fleet.close()
    report(url, sink, jobs, pauses)


def report(url: str, sink: Sink, jobs: int, pauses: list[float]) -> None:
    tried = Counter(one.job for one in sink.deliveries if one.step == "try")
    done = Counter(one.job for one in sink.deliveries if one.step == "done")
    attempts = {json.loads(job["payload"])["number"]: job["attempts"] for job in asyncio.run(jobs_of(url))}
    figures = f"{jobs} jobs, {len(pauses)} probers killed, {sum(tried.values())} tries"
    longest = max(pauses, default=0.0)
    print(f"\n{urlsplit(url).scheme}: {figures}, at most {longest:.1f} s to the next probe, lease {LEASE_SECONDS:g} s")
    assert dict(done) == dict.fromkeys(range(jobs), 1)
    untold = {job: attempts[job] - tried[job] for job in range(jobs)}  # killed between its start and its first word
    assert set(untold.values()) <= {0, 1}
    assert sum(untold.values()) <= len(pauses)
    assert longest <= LEASE_SECONDS + 6


def test_a_prober_that_is_killed_is_replaced_and_all_held_jobs_run(
    database_url: str, sink: Sink, tmp_path: Path
) -> None:
    check_recovery(database_url, sink, tmp_path / "mood", workers=2, jobs=30, kills=1, patience=30)


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_probers_are_killed_again_and_again_and_2000_held_jobs_run(
    database_url: str, sink: Sink, tmp_path: Path
) -> None:
    check_recovery(database_url, sink, tmp_path / "mood", workers=12, jobs=2_000, kills=8, patience=90)


@pytest.mark.chaos
@pytest.mark.timeout(120)
def test_a_probe_that_outlives_its_lease_is_caught_by_the_same_check(
    database_url: str, sink: Sink, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="did not come to that"):
        check_recovery(
            database_url, sink, tmp_path / "mood", workers=2, jobs=30, kills=1, patience=12, twin="immortal-probe"
        )


# --- a hundred thousand held jobs


async def claim_seconds(url: str, jobs: int) -> float:
    """How long it takes to claim other jobs, 50 at a time."""
    store = await open_store(url)
    worker = await store.create(WORKER, name="ann", incarnation="1", workspace_id="test")
    await store.enqueue([NewJob("other")] * jobs)
    began, taken = time.monotonic(), 0
    while got := await store.claim(worker, ["default"], 50, 600_000_000, claim_id=taken + 1, start=True):
        taken += len(got)
    seconds = time.monotonic() - began
    await store.close()
    assert taken == jobs
    return seconds


async def beside_held(url: str, held: int) -> list[float]:
    """Claims before there are any, right after they were held, and once PostgreSQL has cleared away what it left of
    them in the index that claims read; and how long it took to hold them."""
    before = await claim_seconds(url, 2_000)
    store = await open_store(url)
    for _ in range(held // 1000):
        await store.enqueue([NewJob("call", hold_key="breaker:api")] * 1000)
    began = time.monotonic()
    while await store.hold_back(1, "breaker:api", 500):
        pass
    holding = time.monotonic() - began
    assert await store.holds_any(1, "breaker:api")
    await store.close()
    at_once = await claim_seconds(url, 2_000)
    if not url.startswith("sqlite"):
        await type_in(url, "VACUUM jobs")  # there, nobody does it in the background
    return [before, at_once, await claim_seconds(url, 2_000), holding]


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_claims_of_others_are_as_fast_beside_100_000_held_jobs(database_url: str) -> None:
    before, at_once, after, holding = asyncio.run(beside_held(database_url, 100_000))
    figures = f"2,000 claims took {before:.2f} s, {at_once:.2f} s right after 100,000 were held, {after:.2f} s later"
    print(f"\n{urlsplit(database_url).scheme}: {figures} (ratio {after / before:.2f}); holding them {holding:.1f} s")
    assert after / before < 4

"""Limits under fire: never a fourth of three, never a stall when a holder is killed, rates exact to the window, and one
tenant's many jobs that do not keep another's one waiting. Each check has a twin it must catch."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB, WORKER, decide, insist
from keptwork.job import DeclaredJob
from keptwork.store import Event, EventFilter, Job, JobFilter, NewJob, Store, open_store
from keptwork.store.contract.records import LimitRule
from keptwork.store.dialect import POSTGRES, SQLITE
from keptwork.store.sqlite import claim
from keptwork.store.statements import Catalogue
from tests.acceptance import limited_program, twins
from tests.acceptance.effects import Sink
from tests.acceptance.fleet import Fleet
from tests.acceptance.spans import held_spans, marked_spans, most_at_once, most_in_window
from tests.support import postgres_server

PROGRAM = "tests.acceptance.limited_program"
MOST = limited_program.MOST
HOUR = 3_600_000_000
WINDOW = 300_000


@pytest.fixture
def sink() -> Iterator[Sink]:
    opened = Sink()
    yield opened
    opened.close()


async def fill(url: str, jobs: int, seconds: float) -> None:
    app = Keptwork(url)
    limited_program.declare(app, None)
    async with app:
        await app.enqueue_many(
            DeclaredJob(app, app.kinds["marked"]), [{"number": number, "seconds": seconds} for number in range(jobs)]
        )


async def unfinished(url: str) -> int:
    store = await open_store(url)
    found = await store.jobs(JobFilter(states=("queued", "assigned", "running")), limit=10_000, columns=("id",))
    await store.close()
    return len(found)


async def log(store: Store, **wanted: Any) -> list[Event]:
    events = await store.events(EventFilter(entity="job", **wanted), limit=5000)
    found = list(events)
    while events:
        events = await store.events(EventFilter(entity="job", **wanted), after=events[-1].cursor, limit=5000)
        found += events
    return found


def worked(
    url: str, sink: Sink, workers: int, jobs: int, kills: int, seconds: float, patience: float
) -> dict[int, float]:
    """Workers that are killed and replaced while there is work; when each was killed. They have ended."""
    asyncio.run(fill(url, jobs, seconds))
    # While so many start on two cores, one may not be let run for a second: that would end its lease while it lives.
    fleet, killed = Fleet(url, sink.port, lease="1s" if workers < 10 else "5s"), dict[int, float]()
    try:
        fleet.start(workers, PROGRAM)
        give_up_at = time.monotonic() + patience
        while asyncio.run(unfinished(url)):
            assert time.monotonic() < give_up_at, f"stalled with {asyncio.run(unfinished(url))} jobs left"
            holders = {one.pid for one in sink.deliveries[-MOST:] if one.step == "begin"}
            for member in [one for one in fleet.members if one.pid in holders][: kills > len(killed)]:
                fleet.kill(member)
                killed[member.pid] = time.time()
                fleet.start(1, PROGRAM)
            time.sleep(0.3)
    finally:
        fleet.close()
    return killed


def check_limit(url: str, sink: Sink, *, workers: int, jobs: int, kills: int, seconds: float, patience: float) -> None:
    killed = worked(url, sink, workers, jobs, kills, seconds, patience)
    seen = most_at_once(marked_spans(sink.deliveries, killed))
    logged = most_at_once(held_spans(asyncio.run(read_log(url))))
    begins = sorted(one.at for one in sink.deliveries if one.step == "begin")
    pause = max(later - earlier for earlier, later in pairwise(begins))
    figures = f"{workers} workers, {jobs} jobs, {len(killed)} killed, at once {seen} seen and {logged} logged"
    print(f"\n{urlsplit(url).scheme}: limit {MOST}: {figures}, longest pause {pause:.1f} s")
    assert len(killed) >= min(kills, 1)
    assert seen <= MOST, overlaps(sink, killed)
    assert 1 < logged <= MOST


def overlaps(sink: Sink, killed: dict[int, float]) -> list[Any]:
    """The deliveries around the first moment at which there were too many."""
    marks = sorted(sink.deliveries, key=lambda one: one.at)
    open_now: dict[tuple[Any, ...], Any] = {}
    for one in marks:
        for key, begun in list(open_now.items()):
            if killed.get(begun.pid, float("inf")) <= one.at:
                del open_now[key]
        if one.step == "end":
            open_now.pop((one.job, one.token, one.pid), None)
        else:
            open_now[one.job, one.token, one.pid] = one
            if len(open_now) > MOST:
                return [*open_now.values()]
    return []


async def read_log(url: str) -> list[Event]:
    store = await open_store(url)
    events = await log(store)
    await store.close()
    return events


def test_never_a_fourth_and_no_stall_when_a_holder_is_killed(database_url: str, sink: Sink) -> None:
    check_limit(database_url, sink, workers=3, jobs=40, kills=1, seconds=0.1, patience=60)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_sixty_four_workers_never_run_a_fourth_on_sqlite(sqlite_url: str, sink: Sink) -> None:
    check_limit(sqlite_url, sink, workers=64, jobs=600, kills=8, seconds=0.05, patience=600)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_sixty_four_workers_never_run_a_fourth_on_postgres(sink: Sink) -> None:
    with postgres_server.start(settings={"max_connections": "800"}) as server:  # each worker has several
        check_limit(server.create_database(), sink, workers=64, jobs=600, kills=8, seconds=0.05, patience=600)


# --- many claimers of one process, with everything at once that moves a job


async def crowd(store: Store, claimers: int, jobs: int) -> int:
    """Claims and endings of many workers at the same time; how many jobs ran at once at most."""
    await store.declare_limits([LimitRule("job", "busy", MOST)])
    await store.enqueue([NewJob("busy", limit_key="*:busy", held_by="limit")] * jobs)
    running: set[int] = set()
    most = done = 0

    async def claimer(number: int) -> None:
        nonlocal most, done
        worker = await store.create(WORKER, name=str(number), incarnation="i", workspace_id="w")
        claim_id = 0
        while done < jobs:
            claim_id += 1
            if await store.next_pump() is not None:
                await store.pump()
            claimed = await store.claim(worker, ["default"], 5, HOUR, claim_id=claim_id, start=True)
            running.update(job.id for job in claimed)
            most = max(most, len(running))
            for job in claimed:
                await asyncio.sleep(random.uniform(0, 0.002))
                running.discard(job.id)
                ended = await settled(store, job)
                done += ended
            await asyncio.sleep(0.005)

    await asyncio.gather(*[claimer(number) for number in range(claimers)])
    return most


async def settled(store: Store, job: Job) -> bool:
    """One in five goes back into the queue first."""
    trigger = "retry" if job.attempts < 2 and job.id % 5 == 0 else "succeed"
    assert await store.apply([insist(decide(JOB, job, trigger, token=job.token, actor="w"))]) == []
    return trigger == "succeed"


async def test_sixty_four_claimers_never_have_a_fourth(store: Store) -> None:
    assert await crowd(store, 64, 100) <= MOST
    assert 1 < most_at_once(held_spans(await log(store))) <= MOST


async def test_the_check_sees_a_limit_that_counts_nothing(store: Store, database_url: str, monkeypatch: Any) -> None:
    await count_nothing(store, database_url, monkeypatch)
    assert await crowd(store, 16, 60) > MOST
    assert most_at_once(held_spans(await log(store))) > MOST


async def count_nothing(store: Store, url: str, patch: pytest.MonkeyPatch) -> None:
    """Nothing that runs counts against a key."""
    if not url.startswith("sqlite"):
        connection = await asyncpg.connect(url)
        await connection.execute(
            "CREATE OR REPLACE FUNCTION keptwork_limit_room(whose int, counted text, at bigint) RETURNS int "
            "LANGUAGE sql AS 'SELECT 5'"
        )
        await connection.close()
        return
    sql, parameters = store._catalogue["counted"]  # type: ignore[attr-defined]
    broken = sql.replace("held_by IS NULL", "false")
    patch.setitem(store._catalogue._statements, "counted", type(store._catalogue["counted"])(broken, parameters))  # type: ignore[attr-defined]


# --- rates


async def starts(url: str, jobs: int, rate: str, seconds: float) -> list[int]:
    """When jobs of a kind with a rate have started, under two workers, by the log; some of them fail at first."""

    async def rated(ctx: Any, number: int) -> None:
        if number % 4 == 0 and ctx.attempt == 1:
            raise ConnectionError("again")

    async with Keptwork(url) as one, Keptwork(url) as other:
        declared = [app.job(rate=rate, backoff="1ms")(rated) for app in (one, other)]
        await one.enqueue_many(declared[0], [{"number": number} for number in range(jobs)])
        for app in (one, other):
            asyncio.get_running_loop().call_later(seconds, app.stop)
        await asyncio.gather(one.work(), other.work())
        return [event.ts for event in await log(await one.open(), type="job_started")]


async def test_a_rate_is_exact_to_the_window(database_url: str) -> None:
    began = await starts(database_url, 40, "5 per 300ms", 2.5)
    most = most_in_window(began, WINDOW)
    print(f"\n{urlsplit(database_url).scheme}: rate 5 per 300ms: {len(began)} starts, at most {most} in any window")
    assert most == 5
    assert len(began) >= 20


async def test_the_check_sees_starts_that_are_not_counted(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(
        monkeypatch, POSTGRES, "claim", "FROM moved WHERE limited OR limit_key IS NOT NULL", "FROM moved WHERE false"
    )
    patched(monkeypatch, SQLITE, "use", "WHERE id = :id", "WHERE false AND id = :id")
    assert most_in_window(await starts(database_url, 40, "5 per 300ms", 1), WINDOW) > 5


@pytest.mark.chaos
async def test_a_rate_is_exact_over_many_windows(database_url: str) -> None:
    began = await starts(database_url, 2000, "50 per 300ms", 12)
    most = most_in_window(began, WINDOW)
    print(f"\n{urlsplit(database_url).scheme}: rate 50 per 300ms: {len(began)} starts, at most {most} in any window")
    assert most <= 50


def patched(patch: pytest.MonkeyPatch, dialect: Any, name: str, old: str, new: str) -> None:
    """The statement of one database with something else in the place of a guard."""
    shipped = Catalogue.__init__

    def broken(self: Any, given: Any) -> None:
        shipped(self, given)
        if given is dialect:
            self._raw = twins._replaced(self._raw, name, old, new)

    patch.setattr(Catalogue, "__init__", broken)


# --- fairness


async def before_it(url: str, many: int, limit: int = 100) -> int:
    """How many jobs start before the one job of a second tenant, enqueued behind many of the first."""
    store = await open_store(url)
    other = await store.add_tenant("other")
    for begin in range(0, many, 2000):
        await store.enqueue([NewJob("many")] * min(2000, many - begin))
    worker = await store.create(WORKER, name="w", incarnation="i", workspace_id="w")
    await store.claim(worker, ["default"], limit, HOUR, claim_id=1, start=True)
    (one,) = await store.enqueue([NewJob("one", tenant_id=other)])
    before = 0
    for claim_id in range(2, many):
        ids = [job.id for job in await store.claim(worker, ["default"], limit, HOUR, claim_id=claim_id, start=True)]
        if one in ids:
            before += ids.index(one)
            break
        before += len(ids)
    await store.close()
    return before


async def test_one_tenants_many_jobs_do_not_delay_anothers_one(database_url: str) -> None:
    assert await before_it(database_url, 2000) <= 1


@pytest.mark.chaos
async def test_a_hundred_thousand_jobs_do_not_delay_one(database_url: str) -> None:
    before = await before_it(database_url, 100_000)
    print(f"\n{urlsplit(database_url).scheme}: 100,000 jobs of one tenant: {before} start before the one of another")
    assert before <= 1


async def test_the_check_sees_claims_by_age_alone(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, POSTGRES, "claim", twins.FOUND_AND_LOCKED, twins.ONLY_FOUND)
    patched(monkeypatch, POSTGRES, "claim", "jobs.ctid = due.place", "jobs.id = due.place")
    monkeypatch.setattr(claim, "_lanes", lambda *_: [1])
    assert await before_it(database_url, 500) >= 400


# --- the checkers themselves


@pytest.mark.parametrize(
    ("spans", "most"),
    [([], 0), ([(1, 2), (2, 3)], 1), ([(1, 4), (2, 3), (2, 5)], 3), ([(1, 2), (5, 6), (5, 7)], 2)],
)
def test_overlaps_are_counted(spans: Sequence[tuple[float, float]], most: int) -> None:
    assert most_at_once(spans) == most


def test_windows_include_their_end_and_not_their_beginning() -> None:
    assert most_in_window([0, 10, 20], 10) == 1
    assert most_in_window([0, 9, 10, 20], 10) == 2
    assert most_in_window([], 10) == 0

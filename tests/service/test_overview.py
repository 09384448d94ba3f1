"""How everything stands at one look, and how fast it goes; read by the dashboard and by `keptwork top`."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.diagnostics import overview
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.jobs import limits
from keptwork.store import NewJob, Store
from keptwork.workers import commands as workers
from tests.conformance.stage import claim, moved, queued, running, worker
from tests.conformance.times import SECOND
from tests.http.flow_stage import GRAPH, trip
from tests.support.database_time import Timed

MINUTE = 60 * SECOND


def needs(found: overview.Overview) -> dict[str, int]:
    return {need.name: need.number for need in found.urgent}


async def test_where_nothing_is_nothing_needs_anybody(store: Store) -> None:
    found = await overview.read(store, 1)
    assert (needs(found), found.flows, found.jobs, found.queues, found.workers) == ({}, [], [], [], [])
    assert (found.running, found.queued, found.throughput.last_minute.ended) == (0, 0, 0)


async def test_everything_that_waits_for_somebody_is_counted_and_nothing_of_others(
    timed: Timed, other_tenant: int
) -> None:
    owner = await worker(timed.store, seen_at=await timed.store.now())
    (dead,) = await running(timed.store, owner)
    await moved(timed.store, JOB, dead, "dead_letter", by="holder", reason="timeout", reason_code="timeout")
    await timed.store.enqueue([NewJob("k", queue="paused"), NewJob("k", held_by="breaker:tool:aider"), NewJob("k")])
    await timed.store.enqueue([NewJob("k", held_by="limit", limit_key="*:k")])
    await limits.pause(timed.store, 1, "paused")
    await trip(timed.store, 1, "tool:aider")
    await flows.start(timed.store, Flow.model_validate({**GRAPH, "kind": "workstream"}))
    await timed.advance(workers.SILENT_US + 1)
    assert needs(await overview.read(timed.store, 1)) == {
        "approvals": 1,
        "dead_letters": 1,
        "open_breakers": 1,
        "held_jobs": 1,
        "paused_queues": 1,
        "silent_workers": 1,
    }
    assert needs(await overview.read(timed.store, other_tenant)) == {}


async def test_a_flow_that_failed_and_can_be_mended_waits_for_somebody(store: Store) -> None:
    ref = await flows.start(store, Flow.model_validate({**GRAPH, "kind": "workstream"}))
    (line,) = (await overview.read(store, 1)).flows
    assert (line.public_id, line.done, line.total) == (ref.public_id, 0, 2)
    (asked,) = await store.approvals(1)
    await flows.decide_gate(store, await flows.step_of(store, asked), "rejected", "ann", None, asked.id)
    found = await overview.read(store, 1)
    assert (needs(found), found.flows) == ({"failed_flows": 1}, [])


async def test_queues_are_shown_that_have_jobs_are_paused_or_are_served(store: Store) -> None:
    serves = '{"queues": ["default", "run-0123", "agent-4567"]}'
    owner = await worker(store, serves=serves)
    await queued(store, queue="run-89ab")
    (done,) = await queued(store, queue="run-cdef")
    await claim(store, owner, 1, "run-cdef", start=True)
    assert (await overview.read(store, 1)).running == 1
    await moved(store, JOB, done, "succeed", by="holder")
    await limits.pause(store, 1, "a")
    await limits.pause(store, 1, "b")
    await limits.resume(store, 1, "b")
    found = await overview.read(store, 1)
    assert [queue.name for queue in found.queues] == ["a", "default", "run-89ab"]
    assert (found.queued, found.running) == (1, 0)


async def test_as_json_it_says_the_same(store: Store) -> None:
    owner = await worker(store, "RUNNING", name="ann")
    (job,) = await running(store, owner)
    told = overview.as_json(await overview.read(store, 1))
    assert told["jobs"] == {"queued": 0, "running": 1}
    assert (told["running"][0]["kind"], told["running"][0]["worker"]) == ("kind", told["workers"][0]["id"])
    assert (told["workers"][0]["jobs"], told["workers"][0]["name"]) == (1, "ann")
    assert set(told["needs"]) == {need.name for need in (await overview.read(store, 1)).needs}
    assert told["queues"][0]["held"] == 0
    assert job


# --- how fast it goes


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks in a test come one right after the other."""
    monkeypatch.setattr(overview, "REST", 0)


async def ended(store: Store, owner: int, number: int, how: str = "succeed", **facts: str) -> None:
    for job in await running(store, owner, number):
        await moved(store, JOB, job, how, by="holder", **facts)


async def test_jobs_are_counted_by_the_minute_in_which_they_ended(timed: Timed) -> None:
    owner = await worker(timed.store)
    await timed.advance(MINUTE - await timed.store.now() % MINUTE)
    await ended(timed.store, owner, 2)
    await timed.advance(2 * MINUTE)
    await ended(timed.store, owner, 1, "dead_letter", reason="timeout", reason_code="timeout")
    await queued(timed.store, 4)
    found = await overview.read_throughput(timed.store, 1)
    assert [minute[1:] for minute in found.minutes[-3:]] == [(2, 2, 0), (0, 0, 0), (5, 1, 1)]
    assert (len(found.minutes), found.last_minute[1:], found.per_second) == (
        overview.MINUTES,
        (5, 1, 1),
        1 / 60,
    )
    await timed.advance(MINUTE)
    await ended(timed.store, owner, 1)
    later = await overview.read_throughput(timed.store, 1)
    assert [minute[1:] for minute in later.minutes[-4:]] == [(2, 2, 0), (0, 0, 0), (5, 1, 1), (1, 1, 0)]
    await timed.advance(overview.MINUTES * MINUTE)
    assert sum(minute.ended for minute in (await overview.read_throughput(timed.store, 1)).minutes) == 0


class Noting:
    """A store that notes how often it has the log counted."""

    def __init__(self, store: Store) -> None:
        self._store, self.tally, self.counts = store, store.tally, 0

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Noting]:
        yield self

    async def now(self) -> int:
        return await self._store.now()

    async def job_moves_since(self, *which: int) -> dict[str, int]:
        self.counts += 1
        return await self._store.job_moves_since(*which)


async def test_what_is_over_is_not_counted_again(timed: Timed) -> None:
    noting = Noting(timed.store)
    await overview.read_throughput(cast(Store, noting), 1)
    assert noting.counts == overview.MINUTES + 1
    await overview.read_throughput(cast(Store, noting), 1)
    assert noting.counts == overview.MINUTES + 1 + 3  # this minute, the one before, and the last sixty seconds


async def test_a_minute_in_which_somebody_looked_is_counted_again_when_it_is_over(timed: Timed) -> None:
    await timed.advance(MINUTE - await timed.store.now() % MINUTE)
    await queued(timed.store, 1)
    await overview.read_throughput(timed.store, 1)
    await queued(timed.store, 2)
    await timed.advance(5 * MINUTE)
    assert [minute.enqueued for minute in (await overview.read_throughput(timed.store, 1)).minutes[-6:]] == [
        3,
        0,
        0,
        0,
        0,
        0,
    ]


async def test_of_a_busy_log_each_look_counts_some_minutes_more(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_MOVES", 3)
    for _ in range(6):
        await queued(timed.store, 2)
        await timed.advance(MINUTE)
    lengths = [len((await overview.read_throughput(timed.store, 1)).minutes) for _ in range(8)]
    assert lengths == sorted(lengths)
    assert 3 <= lengths[0] < overview.MINUTES
    assert lengths[-1] == overview.MINUTES


async def test_after_a_look_that_took_long_there_is_a_rest(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "REST", 20)
    seconds = itertools.count().__next__  # every look at the clock is a second later
    first = await overview.read_throughput(timed.store, 1, clock=seconds)
    await queued(timed.store)
    assert await overview.read_throughput(timed.store, 1, clock=seconds) is first
    for _ in range(25):
        seconds()
    assert (await overview.read_throughput(timed.store, 1, clock=seconds)).last_minute.enqueued == 1

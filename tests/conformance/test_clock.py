"""Time: the database's own, and it never goes back."""

from __future__ import annotations

import time

import pytest

from keptwork.core.clock import HostClock, ManualClock
from keptwork.core.lifecycles import RUN, WORKER
from keptwork.core.replay import replay
from keptwork.store import Store, open_store
from keptwork.store.contract.store import Reader
from tests.conformance.promises import keeps
from tests.conformance.stage import claimed, entity, log, moved, queued, worker
from tests.conformance.times import SECOND, SetClock


@keeps(
    Reader.now,
    "Return the database's time in microseconds",
    "Leases and schedules use no other clock",
)
async def test_leases_and_schedules_are_decided_by_the_databases_time(timed: Store, clock: SetClock) -> None:
    assert await timed.now() == clock.now
    await clock.advance(SECOND)
    assert await timed.now() == clock.now
    (job,) = await claimed(timed, await worker(timed))
    assert (job.run_at, job.lease_until) == (clock.now, clock.now + 60 * SECOND)


async def test_the_time_is_that_of_today(store: Store) -> None:
    assert abs(await store.now() - time.time_ns() // 1000) < 60 * SECOND


async def test_an_entitys_moves_come_one_after_the_other_though_time_stands_still(timed: Store) -> None:
    id = await worker(timed, "PAUSED")
    row, times = await entity(timed, WORKER, id), [event.ts for event in await log(timed, entity_id=id)]
    assert times == sorted(set(times))
    assert (row["created_at"], row["updated_at"]) == (times[0], times[-1])


async def test_an_entitys_time_never_goes_back_though_the_clock_does(timed: Store, clock: SetClock) -> None:
    id = await timed.create(WORKER, name="ann", incarnation="i", workspace_id="here")
    for trigger in ("start_task", "pause", "terminate"):
        await clock.advance(-3600 * SECOND)
        await moved(timed, WORKER, id, trigger)
    events = await log(timed, entity_id=id)
    times = [event.ts for event in events]
    assert times == sorted(set(times))
    assert replay(WORKER, [event._asdict() for event in events]).problem is None


async def test_on_sqlite_no_time_is_given_out_before_the_newest_events(sqlite_url: str) -> None:
    clock = ManualClock(1_800_000_000_000_000)
    store = await open_store(sqlite_url, clock=clock)
    await queued(store)
    newest = (await log(store))[-1].ts
    clock.advance(-3600 * SECOND)
    assert await store.now() >= newest
    run = await store.create(RUN)
    row = await entity(store, RUN, run)
    assert row["created_at"] >= newest
    assert (await log(store))[-1].ts >= newest
    async with store.snapshot() as snapshot:
        assert await snapshot.now() >= newest
    await store.close()


async def test_on_sqlite_a_second_program_whose_clock_is_slow_goes_by_the_log(sqlite_url: str) -> None:
    ahead = await open_store(sqlite_url, clock=ManualClock(1_800_000_000_000_000))
    behind = await open_store(sqlite_url, clock=ManualClock(1_700_000_000_000_000))
    await queued(ahead)
    await queued(behind)
    assert {event.ts for event in await log(behind)} == {1_800_000_000_000_000}
    await ahead.close()
    await behind.close()


class Times:
    """The two clocks of a host, set by hand."""

    def __init__(self, wall: int, monotonic: int) -> None:
        self.wall, self.monotonic = wall, monotonic

    def time_ns(self) -> int:
        return self.wall * 1000

    def monotonic_ns(self) -> int:
        return self.monotonic * 1000


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times(wall=1_000_000, monotonic=50)
    monkeypatch.setattr("keptwork.core.clock.time", times)
    return times


def test_the_hosts_clock_goes_with_the_wall_clock(host: Times) -> None:
    clock = HostClock()
    assert clock.now() == 1_000_000
    host.wall, host.monotonic = 1_000_500, 550
    assert clock.now() == 1_000_500


def test_set_back_it_is_carried_on_by_the_monotonic_one(host: Times) -> None:
    clock = HostClock()
    host.wall, host.monotonic = 400, 150
    assert clock.now() == 1_000_100
    host.wall, host.monotonic = 500, 250
    assert clock.now() == 1_000_200


def test_set_ahead_it_follows_and_stays_there(host: Times) -> None:
    clock = HostClock()
    host.wall, host.monotonic = 5_000_000, 150
    assert clock.now() == 5_000_000
    host.wall, host.monotonic = 1_000_200, 250
    assert clock.now() == 5_000_100


def test_it_is_never_before_what_it_is_told_and_goes_on_from_there(host: Times) -> None:
    clock = HostClock()
    assert clock.now(at_least=9_000_000) == 9_000_000
    host.wall, host.monotonic = 1_000_100, 150
    assert clock.now() == 9_000_100

"""Workers stopped for longer than their leases: what they write on waking changes nothing, and they go on working."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from keptwork.core.lifecycles import JOB, WORKER
from keptwork.store import EventFilter, open_store
from tests.acceptance.chaos import Stage, stage, until
from tests.acceptance.effects import Delivery
from tests.acceptance.examination import Findings
from tests.acceptance.fleet import Member
from tests.acceptance.observer import drop_guard, write_locked

LEASE_SECONDS = 2.0
LONGEST_WORK = 0.5


class Pause:
    """Some workers stopped in the middle of their jobs, and woken when others have taken these over."""

    def __init__(self, on: Stage, stopped: list[Member]) -> None:
        self.on = on
        self.stopped = stopped
        self.pids = {member.pid for member in stopped}
        self.held: dict[int, int] = {}
        self.not_taken_over: list[int] = []
        self.woken_at = 0.0

    def run(self, seconds: float) -> None:
        before = len(self.on.sink.deliveries)
        until(lambda: self.pids <= {delivery.pid for delivery in self.on.sink.deliveries[before:]})
        began = time.time()
        self._stop_outside_of_writes()
        self.held = asyncio.run(held_by(self.on, self.pids))
        until(lambda: time.time() - began >= seconds)
        held_still = asyncio.run(held_by(self.on, self.pids))
        self.not_taken_over = sorted(self.held.keys() & held_still.keys())
        self.woken_at = time.time()
        self._send(signal.SIGCONT)
        self.on.fleet.note_absence(self.pids, began, self.woken_at)

    def all_work_again(self) -> bool:
        """Waits until every worker that was stopped has begun a job which it did not hold when it was stopped."""
        return until(self._all_began_a_new_job, patience=20)

    @property
    def late(self) -> int:
        """Deliveries under a claim that was over: each is followed by a write under the same claim."""
        return sum(self._was_held(delivery) for delivery in self._since_waking())

    def _stop_outside_of_writes(self) -> None:
        """Whoever is stopped in the middle of a write to a SQLite file stops everybody: nobody could take over. So does
        one that was waiting for its turn, and is given it by the kernel a moment later: hence several looks."""
        self._send(signal.SIGSTOP)
        while self._keeps_others_waiting():
            self._send(signal.SIGCONT)
            time.sleep(0.01)
            self._send(signal.SIGSTOP)

    def _keeps_others_waiting(self) -> bool:
        for _ in range(10):
            if write_locked(self.on.url):
                return True
            time.sleep(0.02)
        return False

    def _send(self, what: signal.Signals) -> None:
        for member in self.stopped:
            member.send(what)

    def _all_began_a_new_job(self) -> bool:
        return self.pids <= {
            delivery.pid
            for delivery in self._since_waking()
            if delivery.step == "first" and not self._was_held(delivery)
        }

    def _since_waking(self) -> list[Delivery]:
        return [one for one in list(self.on.sink.deliveries) if one.at >= self.woken_at and one.pid in self.pids]

    def _was_held(self, delivery: Delivery) -> bool:
        return self.held.get(self.on.ids[delivery.job]) == delivery.token


async def held_by(on: Stage, pids: set[int]) -> dict[int, int]:
    """The running jobs these processes hold, with their tokens."""
    store = await open_store(on.url)
    workers = {event.entity_id for event in await store.events(EventFilter(entity="worker"), limit=5000)}
    theirs = {row["id"] for row in await store.rows(WORKER, sorted(workers)) if row["pid"] in pids}
    rows = await store.rows(JOB, on.ids, ("id", "owner", "state", "epoch"))
    await store.close()
    return {row["id"]: row["epoch"] for row in rows if row["owner"] in theirs and row["state"] == "running"}


def check(on: Stage, workers: int, rounds: int, at_once: int, backlog: int) -> Findings:
    on.feed(backlog, LONGEST_WORK)
    on.fleet.start(workers)
    held = late = stopped = 0
    # A worker that wakes may stop its handlers before any of them writes: then there is one more stop, or two.
    while stopped < rounds or (not late and stopped < rounds + 2):
        stopped += 1
        pause = Pause(on, on.chance.sample(on.fleet.members, at_once))
        pause.run(3 * LEASE_SECONDS)
        assert pause.held, "nobody was stopped in the middle of a job"
        assert pause.not_taken_over == []
        assert pause.all_work_again(), "a worker that was stopped does not work again"
        held, late = held + len(pause.held), late + pause.late
    waiting = on.backlog
    on.wait_until_done(patience=600)
    died = on.fleet.bury_dead()
    found = on.examine()
    stops = f"{stopped * at_once} stops, {held} jobs taken over, {waiting} waiting at the last one"
    print(f"\n{on.kind}: {stops}, {late} late deliveries, {found}")
    assert found.wrong == []
    assert died == []
    assert waiting, "the stops went on when there was nothing left to do"
    assert late > 0, "no worker that was stopped tried to write late"
    return found


@pytest.mark.timeout(120)
def test_3_stopped_workers_change_nothing_when_they_wake_and_go_on_working(database_url: str) -> None:
    with stage(database_url, seed=4) as on:
        check(on, workers=4, rounds=1, at_once=3, backlog=300)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_100_stopped_workers_change_nothing_when_they_wake_and_go_on_working(database_url: str) -> None:
    with stage(database_url, seed=5) as on:
        found = check(on, workers=8, rounds=25, at_once=4, backlog=20_000)
    assert found.recovery_p99 <= LEASE_SECONDS + 2.0


@pytest.mark.timeout(120)
def test_workers_that_write_without_looking_at_the_fence_are_caught_by_the_same_check(database_url: str) -> None:
    with stage(database_url, seed=6, twin="no-fence") as on:
        asyncio.run(drop_guard(database_url))
        on.feed(100, LONGEST_WORK)
        on.fleet.start(3)
        pause = Pause(on, on.fleet.members[:2])
        pause.run(2 * LEASE_SECONDS)
        on.wait_until_done()
        found = on.examine()
    print(f"\n{on.kind}, no fence: {found}")
    assert pause.not_taken_over == []
    assert found.overwritten
    assert [what for what in found.unexplained if "guard" not in what], "the audit saw only that the guard is gone"

"""The watchman: who was silent for too long before its own eyes is ended; an outage that silenced all is forgiven."""

from __future__ import annotations

from keptwork.core.lifecycles import WORKER
from keptwork.maintenance.dead_workers import Watchman
from keptwork.store import Store
from tests.conformance.stage import log, moved, running, worker


class Eyes:
    """The watchman's own sense of time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_it_ends_who_stays_silent_before_its_eyes_and_leaves_the_jobs(store: Store) -> None:
    eyes, silent = Eyes(), await worker(store, "RUNNING")
    await running(store, silent)
    await store.beat(silent)
    watchman = Watchman(store, 1, "supervisor:s", monotonic=eyes)  # a microsecond is soon over
    await watchman.run_once()
    eyes.now += 1
    assert await watchman.run_once() == [silent]
    assert (await log(store, entity="worker", entity_id=silent))[-1].reason == "supervisor_timeout"
    assert {event.trigger for event in await log(store, entity="job")} == {"enqueue", "claim", "start"}


async def test_who_looks_for_the_first_time_judges_nobody_however_old_the_last_sign_is(store: Store) -> None:
    eyes, silent = Eyes(), await worker(store, "RUNNING", seen_at=1)
    watchman = Watchman(store, 60_000_000, "supervisor:s", monotonic=eyes)
    assert await watchman.run_once() == []
    eyes.now += 9.9
    assert await watchman.run_once() == []
    eyes.now += 0.2
    assert await watchman.run_once() == [silent]


async def test_a_sign_of_life_begins_the_watch_anew(store: Store) -> None:
    eyes, alive = Eyes(), await worker(store, "RUNNING", seen_at=1)
    watchman = Watchman(store, 60_000_000, "supervisor:s", monotonic=eyes)
    await watchman.run_once()
    await store.beat(alive)
    eyes.now += 11
    assert await watchman.run_once() == []


async def test_nobody_judges_himself_nor_who_never_spoke_nor_who_has_ended(store: Store) -> None:
    eyes, me = Eyes(), await worker(store, seen_at=1)
    await worker(store)
    ended = await worker(store, seen_at=1)
    await moved(store, WORKER, ended, "terminate")
    watchman = Watchman(store, 60_000_000, f"w:{me}", me, monotonic=eyes)
    await watchman.run_once()
    eyes.now += 60
    assert await watchman.run_once() == []


async def test_a_watchman_that_trusts_the_database_alone_would_end_everybody_after_an_outage(store: Store) -> None:
    """The broken twin: without watching for itself, the first look after an outage is fatal to the living."""
    alive = await worker(store, "RUNNING", seen_at=1)
    twin = Watchman(store, 60_000_000, "supervisor:s")
    twin._since = lambda id, seen_at, at: (seen_at, -1e9)  # type: ignore[method-assign]
    assert await twin.run_once() == [alive]

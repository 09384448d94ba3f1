"""The counters against the log they were counted from: exact, whatever happened, whoever counts, whoever dies."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from keptwork.core import metrics
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import InvalidTransition
from keptwork.jobs import queries
from keptwork.observability import stats
from keptwork.observability.stats import READER, Readout
from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.events_digest import Digest
from tests.conformance.by_hand import hand_on
from tests.conformance.stage import claim, moved, queued, settled, worker
from tests.support.broken_sql import move_on_from_anywhere
from tests.support.command import environment
from tests.support.lives import live
from tests.support.own_count import own_count

OURS = 1
PROGRAM = Path(__file__).with_name("counting_program.py")


async def readout(store: Store, tenant_id: int = OURS) -> Readout:
    return Readout.of(await store.counters(tenant_id))


async def faults(store: Store, tenant_id: int = OURS) -> list[str]:
    """What the counters say otherwise than the log."""
    await settled(store)
    return (await own_count(store, tenant_id)).faults(await readout(store, tenant_id))


async def by_hand(url: str, store: Store) -> None:
    """Moves nobody made through the product: a cancellation, an override and a note, typed as SQL."""
    ids = await queued(store, 3)
    hand = await hand_on(url)
    await hand.run(f"UPDATE jobs SET state = 'cancelled', seq = seq + 1, move = 'cancel' WHERE id = {ids[0]}")
    await hand.run(
        "UPDATE jobs SET state = 'failed', seq = seq + 1, epoch = epoch + 1, move = 'override', reason = 'by hand' "
        f"WHERE id = {ids[1]}"
    )
    await hand.run(f"UPDATE jobs SET seq = seq + 1, move = 'compensate' WHERE id = {ids[0]}")
    await hand.close()


async def test_every_move_is_counted_once_however_it_was_made(store: Store, database_url: str) -> None:
    lives = await live(store, 150, seed=7)
    await by_hand(database_url, store)
    await settled(store)
    counted = await stats.roll_up(store, page=97)
    assert counted == await store.event_count()
    assert await faults(store) == []
    found = await readout(store)
    moves = [trigger for made in lives.moves.values() for trigger in made]
    for trigger, metric in metrics.JOB_MOVES.items():
        typed = {"enqueue": 3, "cancel": 1}.get(trigger, 0)
        assert found.total(metric) == moves.count(trigger) + typed, trigger
    assert found.total(metrics.DEAD_LETTERS) == moves.count("dead_letter") > 0
    assert found.total(metrics.TRANSITIONS, trigger="override") == 1
    assert found.total(metrics.TRANSITIONS, trigger="compensate") == 0
    assert moves.count("expire") > 0 < moves.count("retry")
    assert await stats.roll_up(store) == 0
    assert await faults(store) == []


async def test_no_more_pages_are_counted_than_asked_for(store: Store) -> None:
    await queued(store, 25)
    await settled(store)
    told: list[int] = []
    assert await stats.roll_up(store, page=10, most=20, told=told.append) == 20
    assert await stats.roll_up(store, page=10, told=told.append) == 5
    assert told == [10, 20, 5]


async def test_run_time_and_failures_are_those_of_the_kind(store: Store) -> None:
    owner = await worker(store)
    await store.enqueue([NewJob("good"), NewJob("bad"), NewJob("bad")])
    for job in await claim(store, owner, start=True):
        if job.kind == "good":
            await moved(store, JOB, job.id, "succeed", by="holder")
        else:
            how = {"reason": "validation_failed", "reason_code": "validation_failed", "values": {"error": "no"}}
            await moved(store, JOB, job.id, "dead_letter", by="holder", **how)
    await settled(store)
    await stats.roll_up(store)
    bad, good = stats.kinds((await stats.read(store, "default")).own)
    assert (bad.kind, bad.moves["dead_letter"], bad.success_rate, bad.run.count) == ("bad", 2, 0.0, 2)
    assert (good.kind, good.moves["succeed"], good.success_rate, good.wait.count) == ("good", 1, 1.0, 1)
    dead = (await readout(store)).counts[metrics.DEAD_LETTERS]
    assert dead == {("bad", "validation_failed"): 2}


async def test_a_reason_that_a_hand_typed_becomes_no_label_of_its_own(store: Store, database_url: str) -> None:
    (id,) = await queued(store)
    hand = await hand_on(database_url)
    await hand.run(
        f"UPDATE jobs SET state = 'dead_lettered', seq = seq + 1, move = 'dead_letter', reason = 'x7' WHERE id = {id}"
    )
    await hand.run(f"DELETE FROM jobs WHERE id = {id}")
    await hand.close()
    await settled(store)
    await stats.roll_up(store)
    assert (await readout(store)).counts[metrics.DEAD_LETTERS] == {("unknown", "other"): 1}


async def test_each_tenants_moves_are_counted_for_that_tenant(store: Store, other_tenant: int) -> None:
    await queued(store, 3)
    await queued(store, 5, tenant_id=other_tenant)
    await settled(store)
    await stats.roll_up(store)
    assert (await readout(store)).total(metrics.TRANSITIONS) == 3
    assert (await readout(store, other_tenant)).total(metrics.TRANSITIONS) == 5
    theirs = await stats.read(store, "other")
    assert [kind.moves["enqueue"] for kind in stats.kinds(theirs.own)] == [5]
    assert await faults(store, other_tenant) == []


async def test_what_a_store_refused_is_counted_by_state_and_trigger(store: Store) -> None:
    (id,) = await queued(store)
    await queries.cancel(store, OURS, public_id("job", id))
    with pytest.raises(InvalidTransition):
        await queries.cancel(store, OURS, public_id("job", id))
    figures = await stats.read(store, "default")
    assert figures.own.counts[metrics.REFUSED] == {("job", "cancelled", "cancel"): 1}


# --- several at once, and killed


async def test_several_that_count_at_once_count_no_event_twice(store: Store) -> None:
    await live(store, 60, seed=3)
    await settled(store)
    counted = await asyncio.gather(*(stats.roll_up(store, page=11) for _ in range(4)))
    assert sum(counted) == await store.event_count()
    assert await faults(store) == []


@contextmanager
def counting(url: str, number: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that count, each begun; none is left at the end."""
    command = [sys.executable, str(PROGRAM), url, "3"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) for _ in range(number)]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "counting\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.acceptance
async def test_processes_killed_while_they_count_lose_nothing_and_double_nothing(
    store: Store, database_url: str
) -> None:
    with counting(database_url, 3) as processes:
        lives = asyncio.create_task(live(store, 60, seed=5, batch=20))
        for process in processes[:2]:
            before = await store.log_position(READER)
            while await store.log_position(READER) == before and not lives.done():  # noqa: ASYNC110 - in processes
                await asyncio.sleep(0.001)
            process.send_signal(signal.SIGKILL)
        await lives
    await settled(store)
    await stats.roll_up(store)
    assert await faults(store) == []


async def counted_by_two(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that have read the same stretch before either writes."""
    both, shipped, looks = asyncio.Barrier(2), store.digest, count()

    async def together(after: str | None, limit: int) -> Digest:
        digest = await shipped(after, limit)
        if next(looks) < 2:
            await both.wait()
        return digest

    monkeypatch.setattr(store, "digest", together)
    await asyncio.gather(stats.roll_up(store), stats.roll_up(store))


async def test_of_two_that_read_the_same_stretch_one_counts_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await queued(store, 50)
    await settled(store)
    await counted_by_two(store, monkeypatch)
    assert await faults(store) == []


async def test_the_twin_that_moves_on_from_anywhere_counts_twice_and_is_caught(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_on_from_anywhere(monkeypatch)
    store = await open_store(database_url)
    await queued(store, 50)
    await settled(store)
    await counted_by_two(store, monkeypatch)
    assert await faults(store) == ["job//queued/enqueue: 50 events, 100 counted"]
    await store.close()

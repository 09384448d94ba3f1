"""Workers as their supervisors see them: listed, heard of, asked to end, and missed."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.core.lifecycles import WORKER
from keptwork.store import Store
from keptwork.store.contract.records import JobFilter, Standing, WorkerFilter
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import entity, log, moved, running, worker
from tests.conformance.times import SECOND, SetClock

NO_MOVE = "It is no move, and no event"


@keeps(
    Reader.workers,
    "Return one page of the matching workers, newest first",
    "Reading on from the last ID never returns a worker twice",
)
async def test_workers_are_read_newest_first_page_by_page(store: Store) -> None:
    ids = [await worker(store) for _ in range(5)]
    assert [row["id"] for row in await store.workers()] == ids[::-1]
    first = await store.workers(limit=2)
    rest = await store.workers(after=first[-1]["id"])
    assert [row["id"] for row in [*first, *rest]] == ids[::-1]


@keeps(Reader.workers, "Return one page of the matching workers, newest first")
async def test_workers_are_told_apart_by_state_host_supervisor_and_tenant(store: Store, other_tenant: int) -> None:
    idle = await worker(store, host="a", supervisor="s-1")
    paused = await worker(store, "PAUSED", host="b")
    foreign = await worker(store, host="a", tenant_id=other_tenant)

    async def found(**wanted: object) -> list[int]:
        return [row["id"] for row in await store.workers(WorkerFilter(**wanted))]  # type: ignore[arg-type]

    assert await found(states=("PAUSED",)) == [paused]
    assert await found(states=()) == []
    assert await found(host="a") == [foreign, idle]
    assert await found(supervisor="s-1") == [idle]
    assert await found(tenant_id=1, host="a") == [idle]
    with pytest.raises(KeyError):
        await found(states=("ASLEEP",))


@keeps(Reader.worker_states, "Return the number of the tenant's workers per state, without states that have none")
async def test_workers_are_counted_by_state_for_their_tenant(store: Store, other_tenant: int) -> None:
    for state in ("IDLE", "RUNNING", "RUNNING", "TERMINATED"):
        await worker(store, state)
    await worker(store, tenant_id=other_tenant)
    assert await store.worker_states(1) == {"IDLE": 1, "RUNNING": 2, "TERMINATED": 1}


@keeps(
    Writer.beat,
    "Record a worker's heartbeat and return the worker's state, or None if there is no such worker",
    "This is not a move and writes no event",
)
async def test_a_beat_is_kept_and_tells_how_the_worker_stands(timed: Store, clock: SetClock) -> None:
    id = await worker(timed)
    assert (await entity(timed, WORKER, id))["seen_at"] is None
    assert await timed.beat(id) == Standing("IDLE", None, None, None)
    await moved(timed, WORKER, id, "terminate", actor="ann", reason="enough")
    await clock.advance(SECOND)
    before = await entity(timed, WORKER, id)
    assert await timed.beat(id) == Standing("TERMINATED", None, "ann", "enough")
    after = await entity(timed, WORKER, id)
    assert after.pop("seen_at") - before.pop("seen_at") == SECOND
    assert after == before
    assert len(await log(timed, entity_id=id)) == 2
    assert await timed.beat(id + 1) is None


@keeps(
    Writer.ask_to_end,
    "Request that a worker ends, in a way that the worker interprets",
    "The last request wins",
    "Return False if there is no such worker",
    "This is not a move and writes no event",
)
async def test_a_worker_reads_how_it_was_last_asked_to_end(store: Store) -> None:
    id = await worker(store)
    assert await store.ask_to_end(id, 1, '{"how":"drain"}')
    assert await store.ask_to_end(id, 1, '{"how":"hard"}')
    assert [await store.ask_to_end(id + 1, 1, "{}"), await store.ask_to_end(id, 2, "{}")] == [False, False]
    assert await store.beat(id) == Standing("IDLE", '{"how":"hard"}', None, None)
    assert len(await log(store, entity_id=id)) == 1


@keeps(
    Writer.silent_workers,
    "Return at most `limit` workers that have not ended and whose last heartbeat is at least that old",
    "A worker that has not sent its first heartbeat is never included",
)
async def test_only_a_worker_that_has_said_something_can_fall_silent(timed: Store, clock: SetClock) -> None:
    early, late, ended, never = [await worker(timed) for _ in range(4)]
    for id in (early, ended):
        await timed.beat(id)
    await moved(timed, WORKER, ended, "terminate")
    await clock.advance(SECOND)
    await timed.beat(late)
    await clock.advance(SECOND)

    async def silent(seconds: int) -> list[int]:
        return [row["id"] for row in await timed.silent_workers(seconds * SECOND, 10)]

    assert [await silent(3), await silent(2), await silent(1)] == [[], [early], [early, late]]
    assert [row["id"] for row in await timed.silent_workers(SECOND, 1)] == [early]
    assert never not in await silent(0)


@keeps(Writer.silent_workers, "In a transaction, none of them can send a heartbeat until it ends")
async def test_a_worker_found_silent_cannot_be_heard_of_before_the_verdict(timed: Store, clock: SetClock) -> None:
    id = await worker(timed)
    await timed.beat(id)
    await clock.advance(SECOND)
    async with timed.transaction() as transaction:
        (row,) = await transaction.silent_workers(SECOND, 10)
        beat = asyncio.create_task(timed.beat(id))
        done, _ = await asyncio.wait({beat}, timeout=0.1)
        assert not done
        await moved(transaction, WORKER, row["id"], "terminate", reason="supervisor_timeout")
    standing = await beat
    assert standing is not None
    assert standing.state == "TERMINATED"


async def test_the_jobs_of_a_worker_are_found_by_their_owner(store: Store) -> None:
    one, other = await worker(store), await worker(store)
    mine, theirs = await running(store, one, 2), await running(store, other)
    found = await store.jobs(JobFilter(owner=one, states=("assigned", "running")), newest_first=False)
    assert [row["id"] for row in found] == mine
    assert theirs[0] not in mine

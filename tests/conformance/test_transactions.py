"""Transactions and snapshots: together or not at all, unseen until committed, one moment."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.core.lifecycles import JOB, RUN, WORKER
from keptwork.errors import StoreError
from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.store import Reader, Transaction, Writer
from keptwork.store.contract.store import Store as Promises
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, claimed, decided, entity, log, moved, queued, worker

BAD = [NewJob("good"), NewJob("bad", on_exhausted="shrug")]


@keeps(
    Promises.transaction,
    "Return a transaction over several calls",
    "It commits at the end of the block, and an exception rolls it back",
)
@keeps(Transaction, "Several reads and writes that take effect together or not at all")
async def test_what_is_written_in_a_transaction_is_committed_together_at_its_end(store: Store) -> None:
    async with store.transaction() as transaction:
        owner = await worker(transaction)
        (job,) = await claimed(transaction, owner)
        await moved(transaction, JOB, job.id, "start", by="holder")
        run = await transaction.create(RUN)
        await transaction.set_queue_paused("default", True)
    assert (await entity(store, JOB, job.id))["state"] == "running"
    assert (await entity(store, RUN, run))["state"] == "PENDING"
    assert await store.event_count() == 5
    await queued(store)
    assert await claim(store, owner) == []


@keeps(Promises.transaction, "It commits at the end of the block, and an exception rolls it back")
@keeps(Transaction, "Several reads and writes that take effect together or not at all")
async def test_an_exception_undoes_everything_and_is_raised_on(store: Store) -> None:
    owner = await worker(store)
    (id,) = await queued(store)
    before = await entity(store, JOB, id), await entity(store, WORKER, owner), await store.event_count()

    async def fail_at_last() -> None:
        async with store.transaction() as transaction:
            await queued(transaction, 3)
            await moved(transaction, WORKER, owner, "start_task")
            await claim(transaction, owner)
            await moved(transaction, JOB, id, "start", by="holder")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_last()
    assert (await entity(store, JOB, id), await entity(store, WORKER, owner), await store.event_count()) == before
    assert await store.counts(JOB) == (1, 0)


async def test_a_cancelled_task_undoes_its_transaction(store: Store) -> None:
    inside = asyncio.Event()

    async def forgetful() -> None:
        async with store.transaction() as transaction:
            await queued(transaction)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(forgetful())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await queued(store)
    assert await store.counts(JOB) == (1, 0)


async def test_a_transaction_sees_what_it_has_written(store: Store) -> None:
    async with store.transaction() as transaction:
        owner = await worker(transaction)
        (job,) = await claimed(transaction, owner)
        assert (await entity(transaction, JOB, job.id))["owner"] == owner
        assert await transaction.counts(JOB) == (1, 0)
        assert await transaction.event_count() == 3
        assert [event.trigger for event in await transaction.history((0, 0), 9)] == ["register", "enqueue", "claim"]
        assert [event.trigger for event in await log(transaction)] == ["register", "enqueue", "claim"]


@keeps(
    Reader,
    "Read operations",
    "Each sees one committed state of the database, never part of a transaction",
)
@keeps(
    Writer,
    "Write operations",
    "In a transaction, they are on disk when it commits",
)
async def test_nobody_else_sees_a_transactions_writes_before_it_commits(store: Store) -> None:
    (old,) = await queued(store)
    async with store.transaction() as transaction:
        (new,) = await queued(transaction)
        await moved(transaction, JOB, old, "cancel")
        assert await store.get(JOB, new, None) is None
        assert (await entity(store, JOB, old))["state"] == "queued"
        assert (await store.counts(JOB), await store.event_count()) == ((1, 0), 1)
        assert [event.entity_id for event in await log(store)] == [old]
    assert await store.counts(JOB) == (2, 0)
    assert [event.entity_id for event in await log(store)] == [old, new, old]


async def test_another_program_on_the_same_database_sees_them_only_then_too(store: Store, database_url: str) -> None:
    other = await open_store(database_url)
    async with store.transaction() as transaction:
        (id,) = await queued(transaction)
        assert await other.get(JOB, id, None) is None
    assert await other.get(JOB, id, None) == await entity(store, JOB, id)
    await other.close()


@keeps(
    Promises,
    "An open database",
    "Each call is a transaction of its own",
)
async def test_each_call_is_a_transaction_of_its_own(store: Store) -> None:
    (id,) = await queued(store)
    with pytest.raises(StoreError):
        await store.enqueue(BAD)
    assert (await entity(store, JOB, id))["state"] == "queued"
    assert await store.counts(JOB) == (1, 0)


async def test_a_call_that_fails_leaves_those_that_share_its_commit_alone(store: Store) -> None:
    calls = [store.enqueue(BAD) if number % 3 == 1 else queued(store) for number in range(12)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, StoreError) for answer in answers] == [number % 3 == 1 for number in range(12)]
    assert await store.counts(JOB) == (8, 0)


async def test_a_failed_call_whose_error_is_swallowed_never_leaves_half_of_itself(store: Store) -> None:
    """Either the call alone is undone, or the transaction with it; and then that is said."""
    committed = True
    try:
        async with store.transaction() as transaction:
            await queued(transaction)
            with pytest.raises(StoreError):
                await transaction.enqueue(BAD)
    except StoreError:
        committed = False
    assert await store.counts(JOB) == ((1, 0) if committed else (0, 0))


async def test_many_transactions_may_be_open_at_once_and_all_get_done(store: Store) -> None:
    """More than there are connections, each needing keys for new rows."""

    async def work() -> None:
        async with store.transaction() as transaction:
            await queued(transaction, 70)

    async with asyncio.timeout(60):
        await asyncio.gather(*[work() for _ in range(24)])
    assert await store.counts(JOB) == (24 * 70, 0)


@keeps(Promises.snapshot, "Return a block whose reads all see the same moment")
async def test_the_reads_of_a_snapshot_all_see_the_same_moment(store: Store) -> None:
    owner = await worker(store)
    (id,) = await queued(store)
    async with store.snapshot() as snapshot:
        before = await snapshot.counts(JOB)
        await moved(store, JOB, id, "cancel")
        await queued(store, 5)
        await decided(store, WORKER, owner, "start_task")
        assert await snapshot.counts(JOB) == before == (1, 0)
        assert (await entity(snapshot, JOB, id))["state"] == "queued"
        assert await snapshot.event_count() == len(await log(snapshot)) == 2
    async with store.snapshot() as later:
        assert await later.counts(JOB) == (6, 0)
        assert (await entity(later, JOB, id))["state"] == "cancelled"


async def test_a_snapshot_holds_nobody_up_and_ends_with_its_block(store: Store) -> None:
    async with store.snapshot() as snapshot:
        await snapshot.counts(JOB)
        await queued(store)
    assert await store.counts(JOB) == (1, 0)


async def test_a_caller_that_gives_up_waiting_for_a_transaction_holds_up_nobody(store: Store) -> None:
    async def wait_in_vain() -> None:
        async with store.transaction():
            raise AssertionError("it was never its turn")

    async with store.transaction():
        waiting = asyncio.create_task(wait_in_vain())
        await asyncio.sleep(
            0
        )  # SQLite: it stands in line; PostgreSQL has a connection for it, and is cancelled on the way
        waiting.cancel()
        await asyncio.wait({waiting})
    async with asyncio.timeout(60):
        await queued(store)

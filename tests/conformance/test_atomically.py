"""Work in one transaction, written once for both databases; and the locks of trees of flows."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from keptwork.core.lifecycles import JOB, RUN, RUN_STEP, WORKSTREAM
from keptwork.errors import StoreError
from keptwork.store import Blob, NewJob, Store, Transaction
from keptwork.store.contract.store import Store as Promises
from keptwork.store.contract.store import Transaction as Part
from keptwork.store.contract.store import Writer
from keptwork.store.postgres.operations import PostgresVerbs
from keptwork.store.postgres.store import PostgresStore
from tests.conformance.promises import keeps
from tests.conformance.stage import Verbs, entity, moved, queued
from tests.conformance.waiting import PATIENCE

OURS = 1
BAD = [NewJob("good"), NewJob("bad", on_exhausted="shrug")]


@keeps(Promises.atomically, "Run the work in one transaction and return its result")
async def test_work_is_done_together_or_not_at_all(store: Store) -> None:
    async def work(transaction: Transaction) -> int:
        run = await transaction.create(RUN)
        await queued(transaction)
        assert (await entity(transaction, RUN, run))["state"] == "PENDING"
        return run

    async def fail(transaction: Transaction) -> None:
        await work(transaction)
        raise ZeroDivisionError

    run = await store.atomically(work)
    before = await store.event_count()
    with pytest.raises(ZeroDivisionError):
        await store.atomically(fail)
    assert (await entity(store, RUN, run))["state"] == "PENDING"
    assert await store.event_count() == before == 2


@keeps(Part.atomically, "Run the work as a part of this transaction and return its result")
async def test_inside_a_transaction_it_is_a_part_of_that(store: Store) -> None:
    async def work(transaction: Transaction) -> int:
        return await transaction.create(RUN)

    async def nested(transaction: Transaction) -> int:
        return await transaction.atomically(work)

    run = await store.atomically(nested)
    assert (await entity(store, RUN, run))["state"] == "PENDING"

    async def undone() -> None:
        async with store.transaction() as transaction:
            await transaction.atomically(work)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await undone()
    assert await store.counts(RUN) == (1, 0)


@keeps(Promises.atomically, "`weight` is about the number of rows that it will touch")
@pytest.mark.parametrize("weight", [1, 10_000])
async def test_light_and_heavy_work_is_done_alike_by_many_at_once(store: Store, weight: int) -> None:
    async def work(transaction: Transaction) -> int:
        (id,) = await queued(transaction)
        return id

    ids = await asyncio.gather(*[store.atomically(work, weight) for _ in range(20)])
    assert len(set(ids)) == 20
    assert await store.counts(JOB) == (20, 0)


@keeps(
    Promises.atomically,
    "The database can require that the work runs again from the start, so it awaits only calls of the given "
    "transaction",
    "On SQLite, it runs without interruption",
)
async def test_work_that_waits_for_something_else_is_refused_on_sqlite_and_leaves_nothing(
    store: Store,
) -> None:
    async def work(transaction: Transaction) -> None:
        await queued(transaction)
        await asyncio.sleep(0)

    if store.url.startswith("sqlite"):
        with pytest.raises(RuntimeError, match="waited for something other than that transaction"):
            await store.atomically(work)
        assert await store.counts(JOB) == (0, 0)
    await queued(store)
    assert (await store.counts(JOB))[0] == 1


async def test_a_failed_call_that_the_work_lets_pass_leaves_nothing_of_it(store: Store) -> None:
    async def work(transaction: Transaction) -> None:
        await queued(transaction)
        with contextlib.suppress(Exception):
            await transaction.enqueue(BAD)

    with pytest.raises(StoreError, match="a call in this transaction failed, so all of it was undone"):
        await store.atomically(work)
    assert await store.counts(JOB) == (0, 0)


async def test_whoever_waits_for_work_is_told_of_jobs_enqueued_in_it(store: Store) -> None:
    heard = asyncio.Event()
    stop = store.listen(heard.set)
    async with asyncio.timeout(60):
        while not heard.is_set():  # on PostgreSQL a while passes before it listens
            await store.atomically(queued)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(heard.wait(), 0.2)
    stop()


@keeps(
    Writer.lock_trees,
    "In a transaction, lock these trees of flows until it ends",
    "Other callers that lock one of them wait",
)
async def test_whoever_locks_the_same_tree_waits_and_another_tree_does_not_matter(store: Store) -> None:
    order: list[str] = []

    async def locked(transaction: Transaction) -> None:
        await transaction.lock_trees([9, 7])
        order.append("second")

    async def elsewhere(transaction: Transaction) -> None:
        await transaction.lock_trees([8])

    async with store.transaction() as transaction:
        await transaction.lock_trees([7, 5, 7])
        second = asyncio.create_task(store.atomically(locked))
        if not store.url.startswith("sqlite"):  # there is one writer, whom all others wait for anyway
            await store.atomically(elsewhere)
        await asyncio.wait({second}, timeout=PATIENCE)
        order.append("first")
    await second
    assert order == ["first", "second"]


async def two_in_opposite_order(store: Store) -> tuple[list[BaseException | int], int]:
    """Two that take the same locks the wrong way round; what came of both, and how often they began."""
    begun, both = 0, asyncio.Barrier(2)

    async def crossing(transaction: Transaction, *trees: int) -> int:
        nonlocal begun
        begun += 1
        await transaction.lock_trees(trees[:1])
        if begun <= 2:
            await both.wait()
        await transaction.lock_trees(trees[1:])
        return await transaction.create(RUN)

    answers = await asyncio.gather(
        store.atomically(lambda transaction: crossing(transaction, 1, 2)),
        store.atomically(lambda transaction: crossing(transaction, 2, 1)),
        return_exceptions=True,
    )
    return list(answers), begun


@keeps(
    Promises.atomically,
    "The database can require that the work runs again from the start, so it awaits only calls of the given "
    "transaction",
)
async def test_of_two_that_wait_for_each_other_one_begins_again_and_both_are_done(postgres_store: Store) -> None:
    answers, begun = await two_in_opposite_order(postgres_store)
    assert all(isinstance(answer, int) for answer in answers), answers
    assert begun > 2
    assert await postgres_store.counts(RUN) == (2, 0)


async def test_the_test_above_notices_a_store_that_does_not_begin_again(
    postgres_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresStore, "atomically", PostgresVerbs.atomically)
    answers, begun = await two_in_opposite_order(postgres_store)
    assert [type(answer) for answer in answers if not isinstance(answer, int)] == [StoreError]
    assert begun == 2


async def referred_to(transaction: Verbs, content: bytes) -> str:
    """Content that a step is given in the same transaction."""
    blob = Blob.of(content)
    flow = await transaction.create(WORKSTREAM, max_retries=0)
    step = await transaction.create(RUN_STEP, name="a", flow_id=flow)
    await moved(transaction, RUN_STEP, step, "claim")
    await transaction.keep_blob(OURS, blob)
    values = {"output": None, "output_hash": blob.hash, "cost_micros": None}
    await moved(transaction, RUN_STEP, step, "succeed", values=values)
    return blob.hash


@keeps(Writer.keep_blob, "Store content, once per tenant, for a row that will refer to it in the same transaction")
async def test_content_is_kept_once_while_a_step_refers_to_it(store: Store, other_tenant: int) -> None:
    hash = await store.atomically(lambda transaction: referred_to(transaction, b"large"))
    assert await store.atomically(lambda transaction: referred_to(transaction, b"large")) == hash
    await store.keep_blob(OURS, Blob.of(b"nobody's"))
    assert await store.blob(OURS, hash) == b"large"
    assert await store.blob(other_tenant, hash) is None
    assert await store.drop_unused_blobs(await store.now() + 1, 10) == 1
    assert await store.blob(OURS, hash) == b"large"
    assert await store.blob(OURS, Blob.of(b"nobody's").hash) is None

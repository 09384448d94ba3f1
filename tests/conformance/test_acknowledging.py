"""A block that acknowledges: it decides and writes as without it. Only `tests/acceptance` has standbys to wait for."""

from __future__ import annotations

import pytest

from keptwork.errors import BadInput
from keptwork.store import NewJob, Store
from keptwork.store.contract.store import Store as Promises
from keptwork.store.contract.store import Transaction
from tests.conformance.promises import keeps


@keeps(
    Promises.acknowledging,
    "Return a block for a decision made from reads, with the guarantee that every write has",
    "The block ends, also with an error, only when the database's synchronous standbys have the rows it read",
    "Without standbys, it does not wait",
)
async def test_block_without_standbys_passes_on_its_answer_and_its_refusal(store: Store) -> None:
    async with store.acknowledging():
        await store.enqueue([NewJob("k", key="order-17")])
    async with store.acknowledging():
        assert len(await store.jobs()) == 1
    with pytest.raises(BadInput):
        await refused(store)


async def refused(store: Store) -> None:
    async with store.acknowledging():
        await store.jobs()
        raise BadInput(what="no")


@keeps(
    Transaction.acknowledging,
    "Return a block for a decision inside the transaction, whose own end waits for the standbys",
)
async def test_block_in_a_transaction_commits_and_rolls_back_with_it(store: Store) -> None:
    async def refuse(tx: Transaction) -> None:
        async with tx.acknowledging():
            await tx.enqueue([NewJob("k")])
            raise BadInput(what="no")

    async def enqueue(tx: Transaction) -> None:
        async with tx.acknowledging():
            await tx.enqueue([NewJob("k")])

    with pytest.raises(BadInput):
        await store.atomically(refuse)
    await store.atomically(enqueue)
    assert len(await store.jobs()) == 1

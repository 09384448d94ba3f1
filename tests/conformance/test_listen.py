"""Listen: who waits for work hears of it at once, from whichever process it comes."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.store import Store as Promises
from tests.conformance.promises import keeps
from tests.conformance.stage import queued

pytestmark = pytest.mark.acceptance

ENQUEUE = """
import asyncio, sys
from keptwork.store import NewJob, open_store

async def main():
    store = await open_store(sys.argv[1])
    sys.stdin.readline()
    await store.enqueue([NewJob("noop")])
    await store.close()

asyncio.run(main())
"""


class Ear:
    """Counts the rings, and waits for one."""

    def __init__(self, store: Store) -> None:
        self._rung = asyncio.Event()
        self.stop = store.listen(self._rung.set)

    async def hears(self, within: float = 5.0) -> float | None:
        """How long it took; none if it stayed quiet."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(within):
                await self._rung.wait()
        except TimeoutError:
            return None
        self._rung.clear()
        return time.monotonic() - began

    async def is_ready(self) -> None:
        """On PostgreSQL the listening connection says by a first ring that it is there."""
        await self.hears(within=1.0)


@keeps(
    Promises.listen,
    "Register a callback for new work",
    "It runs on this event loop soon after any process enqueues jobs or resumes a queue",
)
async def test_another_processs_enqueue_is_heard(store: Store, database_url: str) -> None:
    ear = Ear(store)
    await ear.is_ready()
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENQUEUE, database_url, stdin=asyncio.subprocess.PIPE
    )
    await other.communicate(b"now\n")
    assert await ear.hears() is not None
    ear.stop()


async def test_an_enqueue_is_heard_within_a_blink(store: Store, database_url: str) -> None:
    ear, other = Ear(store), await open_store(database_url)
    await ear.is_ready()
    took = []
    for _ in range(5):
        await other.enqueue([NewJob("noop")])
        took.append(await ear.hears())
        await asyncio.sleep(0.01)
    assert sorted(time for time in took if time is not None)[2] < 0.1
    ear.stop()
    await other.close()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_rings_when_it_commits_and_only_then(store: Store, commits: bool) -> None:
    ear = Ear(store)
    await ear.is_ready()
    try:
        async with store.transaction() as transaction:
            await queued(transaction)
            assert await ear.hears(within=0.1) is None
            assert commits, "undone"
    except AssertionError:
        assert not commits
    assert (await ear.hears(within=5.0 if commits else 0.2) is not None) == commits
    ear.stop()


@keeps(
    Promises.listen,
    "Register a callback for new work",
    "It runs on this event loop soon after any process enqueues jobs or resumes a queue",
)
@pytest.mark.parametrize("in_a_transaction", [True, False])
async def test_a_resumed_queue_rings_and_a_paused_one_does_not(store: Store, in_a_transaction: bool) -> None:
    ear = Ear(store)
    await ear.is_ready()
    for paused in (True, False):
        if in_a_transaction:
            async with store.transaction() as transaction:
                await transaction.set_queue_paused("default", paused)
        else:
            await store.set_queue_paused("default", paused)
        assert (await ear.hears(within=0.2 if paused else 5.0) is None) == paused
    ear.stop()


@keeps(Promises.listen, "Return a function that removes it")
async def test_who_stops_listening_hears_nothing_more(store: Store) -> None:
    ear = Ear(store)
    await ear.is_ready()
    ear.stop()
    await queued(store)
    assert await ear.hears(within=0.2) is None


@keeps(Promises.listen, "A notification can be lost or spurious, so callers must also poll")
async def test_a_crowd_of_enqueues_is_heard_though_most_of_them_do_not_ring(store: Store) -> None:
    ear = Ear(store)
    await ear.is_ready()
    await asyncio.gather(*[queued(store) for _ in range(50)])
    assert await ear.hears() is not None
    ear.stop()

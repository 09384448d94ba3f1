"""Follow: the log as it grows; no event is missed or repeated, however the writers' commits fall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from random import Random

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Event, EventFilter, Store, open_store
from keptwork.store.contract.store import Store as Promises
from tests.conformance.by_hand import hand_on
from tests.conformance.promises import keeps
from tests.conformance.stage import eventually, moved, queued, settled, undone

A_WHILE = 0.3  # three times the longest pause between a follower's looks


@asynccontextmanager
async def following(
    store: Store, wanted: EventFilter | None = None, after: str | None = None
) -> AsyncIterator[list[Event]]:
    """A follower at work; what it has seen so far is in the list."""
    seen: list[Event] = []

    async def follow() -> None:
        async for event in store.follow(wanted or EventFilter(), after=after):
            seen.append(event)

    task = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(seen: list[Event], number: int) -> None:
    async def enough() -> bool:
        return len(seen) >= number

    await eventually(enough)


def entities(events: list[Event]) -> list[int]:
    return [event.entity_id for event in events]


@keeps(
    Promises.follow,
    "Yield every event in commit order, without end",
    "Existing events come first, then new ones",
)
async def test_first_come_the_events_there_are_then_those_to_come(store: Store) -> None:
    old = await queued(store, 3)
    async with following(store) as seen:
        await until(seen, 3)
        new = [id for _ in range(3) for id in await queued(store)]
        await until(seen, 6)
    assert entities(seen) == old + new


async def test_a_follower_goes_on_after_its_cursor_and_sees_only_what_it_wants(store: Store) -> None:
    first, second = await queued(store, 2)
    await settled(store)
    cursor = (await store.events())[0].cursor
    async with (
        following(store, EventFilter(entity="job"), cursor) as seen,
        following(store, EventFilter(type="job_cancelled")) as cancelled,
    ):
        await moved(store, JOB, second, "cancel")
        await until(seen, 2)
        await until(cancelled, 1)
    assert entities(seen) == [second, second]
    assert [event.type for event in cancelled] == ["job_cancelled"]
    assert first not in entities(seen)


@keeps(Promises.follow, "Yield every event in commit order, without end")
async def test_no_event_is_missed_or_repeated_while_many_writers_commit(store: Store) -> None:
    random = Random(4)

    async def write(jobs: int) -> None:
        """Transactions of different lengths that overlap, some of them undone."""
        for number in range(jobs):
            async with undone(store) if number % 5 == 4 else store.transaction() as transaction:
                (id,) = await queued(transaction)
                await asyncio.sleep(random.random() / 200)
                await moved(transaction, JOB, id, "cancel")

    async with following(store) as early:
        await asyncio.gather(*[write(10) for _ in range(6)])
        async with following(store) as late:
            await until(early, 96)
            await until(late, 96)
            await asyncio.sleep(0.02)
    assert len(early) == len({event.cursor for event in early}) == await store.event_count() == 96
    assert early == late
    by_entity: dict[int, Iterator[int]] = {}
    assert all(event.seq == next(by_entity.setdefault(event.entity_id, count(1))) for event in early)


@pytest.fixture
async def without_horizon(postgres_copy: str) -> AsyncIterator[Store]:
    """The broken twin: readers do not stop before the oldest transaction that is still open."""
    hand = await hand_on(postgres_copy)
    await hand.run(
        "CREATE OR REPLACE FUNCTION keptwork_tx_horizon() RETURNS bigint "
        "LANGUAGE sql STABLE AS 'SELECT 1000000000000000'"
    )
    await hand.close()
    store = await open_store(postgres_copy)
    yield store
    await store.close()


async def overtaken(store: Store, seen: list[Event]) -> tuple[int, int, int]:
    """Three events: two in a transaction that begins first and commits last, one overtaking it.

    The first of the slow two has a lower id than the overtaker, the second a higher one; both sort before it.
    """
    async with store.transaction() as slow:
        (first,) = await queued(slow)
        (overtaker,) = await queued(store)
        await asyncio.sleep(A_WHILE)
        early = entities(seen)
        (second,) = await queued(slow)
    assert early == []
    return first, second, overtaker


async def test_an_event_that_overtakes_an_older_transaction_is_not_seen_before_that_commits(
    postgres_store: Store,
) -> None:
    async with following(postgres_store) as seen:
        first, second, overtaker = await overtaken(postgres_store, seen)
        await until(seen, 3)
        await asyncio.sleep(A_WHILE)
    assert entities(seen) == [first, second, overtaker]
    assert entities(await postgres_store.events()) == [first, second, overtaker]


async def test_a_transaction_that_is_undone_holds_the_others_up_no_longer(postgres_store: Store) -> None:
    async with following(postgres_store) as seen:
        async with undone(postgres_store) as slow:
            await queued(slow)
            (overtaker,) = await queued(postgres_store)
        await until(seen, 1)
        await asyncio.sleep(A_WHILE)
    assert entities(seen) == [overtaker]


async def test_the_check_above_catches_a_follower_that_does_not_wait(without_horizon: Store) -> None:
    async with following(without_horizon) as seen:
        async with without_horizon.transaction() as slow:
            await queued(slow)
            (overtaker,) = await queued(without_horizon)
            await until(seen, 1)
        await asyncio.sleep(A_WHILE)
    assert entities(seen) == [overtaker]  # the older one came too late for it, and is missed for ever
    assert await without_horizon.event_count() == 2

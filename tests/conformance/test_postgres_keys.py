"""Keys on PostgreSQL: made in the process from pages reserved in the database, unique over all processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import pytest

from keptwork.core import ids
from keptwork.core.lifecycles import JOB
from keptwork.store import NewJob, Store
from keptwork.store.postgres.batches_keys import PAGE_LIFE_SECONDS, PAGE_SIZE, KeyPages
from keptwork.store.postgres.store import PostgresStore

pytestmark = pytest.mark.acceptance

TAKER = """
import asyncio, sys
from keptwork.store import NewJob, open_store

async def take():
    store = await open_store(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for size in [1, 7, 64, 65, 200] * 6:
        print(*await store.enqueue([NewJob("kind")] * size), sep="\\n")
    await store.close()

asyncio.run(take())
"""


def keys_of_processes(url: str, number: int) -> list[list[int]]:
    """What that many processes take at the same time, each in the order it took them."""
    start = [sys.executable, "-c", TAKER, url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    takers = [subprocess.Popen(start, **pipes) for _ in range(number)]
    assert [taker.stdout.readline() for taker in takers if taker.stdout] == ["ready\n"] * number
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.write("\n")
        taker.stdin.flush()
    taken = [[int(line) for line in taker.communicate()[0].split()] for taker in takers]
    assert [taker.returncode for taker in takers] == [0] * number
    return taken


async def test_keys_are_unique_over_all_processes_and_grow_in_each(
    emptied_database: str, postgres_store: Store
) -> None:
    taken = await asyncio.to_thread(keys_of_processes, emptied_database, 3)
    assert all(keys == sorted(set(keys)) for keys in taken)
    every = [key for keys in taken for key in keys]
    assert len(every) == len(set(every)) == 3 * 6 * 337
    assert await postgres_store.counts(JOB) == (len(every), 0)


class Pages:
    """Pages as the database gives them out, and how many were asked for."""

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self.asked: list[int] = []

    async def reserve(self, count: int) -> list[int]:
        await asyncio.sleep(0)  # as a server does, it lets others go on meanwhile
        self.asked.append(count)
        self.next += count
        return list(range(self.next - count, self.next))


async def test_keys_tell_the_time_they_were_taken() -> None:
    before = time.time_ns() // 1_000_000
    (key,) = await KeyPages().take(1, Pages().reserve)
    after = time.time_ns() // 1_000_000
    assert ids.first_key_of(before) <= key < ids.first_key_of(after + 1)


async def test_a_page_is_used_up_before_the_next_is_asked_for() -> None:
    keys, pages = KeyPages(), Pages()
    for _ in range(PAGE_SIZE):
        await keys.take(1, pages.reserve)
    assert pages.asked == [1]
    await keys.take(PAGE_SIZE + 1, pages.reserve)
    assert pages.asked == [1, 2]


async def test_callers_at_once_get_all_the_keys_they_asked_for_and_no_key_twice() -> None:
    keys, pages = KeyPages(), Pages()
    first = await keys.take(PAGE_SIZE - 10, pages.reserve)
    # The first of these counts on the ten that are left and waits for more; the second takes the ten meanwhile.
    sizes = [PAGE_SIZE + 6, 10, 1, PAGE_SIZE, 130]
    taken = await asyncio.gather(*[keys.take(size, pages.reserve) for size in sizes])
    assert [len(got) for got in taken] == sizes
    offsets = [key % (1 << ids.COUNTER_BITS) for got in (first, *taken) for key in got]
    assert len(offsets) == len(set(offsets))


async def test_a_page_kept_too_long_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number comes round again, and by then somebody else may have it."""
    keys, pages, now = KeyPages(), Pages(), time.monotonic()
    await keys.take(1, pages.reserve)
    monkeypatch.setattr(time, "monotonic", lambda: now + PAGE_LIFE_SECONDS - 1)
    await keys.take(1, pages.reserve)
    assert pages.asked == [1]
    monkeypatch.setattr(time, "monotonic", lambda: now + PAGE_LIFE_SECONDS + 1)
    await keys.take(1, pages.reserve)
    assert pages.asked == [1, 1]


async def test_the_pages_come_round_and_the_keys_still_grow(postgres_store: Store) -> None:
    assert isinstance(postgres_store, PostgresStore)
    async with postgres_store._connection() as connection:
        await connection.execute("SELECT setval('keptwork_pages', 65534)")
    ids = await postgres_store.enqueue([NewJob("kind")] * (3 * PAGE_SIZE))
    assert ids == sorted(set(ids))
    assert await postgres_store.counts(JOB) == (3 * PAGE_SIZE, 0)

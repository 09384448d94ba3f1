"""Reads on threads: together, and none at another's cost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keptwork.errors import StoreError
from keptwork.store import open_store
from keptwork.store.sqlite.readers import READERS
from keptwork.store.sqlite.store import SqliteStore


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await open_store(f"sqlite:///{tmp_path}/keptwork.db")
    assert isinstance(store, SqliteStore)
    yield store
    await store.close()


async def test_what_waits_while_a_thread_reads_is_read_in_one_go(opened: SqliteStore) -> None:
    begun, go_on = threading.Event(), threading.Event()
    sessions: list[Any] = []

    def slow(session: Any) -> None:
        begun.set()
        assert go_on.wait(60)

    def quick(session: Any) -> int:
        sessions.append(session)
        return len(sessions)

    first = asyncio.ensure_future(opened._read(slow))
    await asyncio.to_thread(begun.wait, 10)
    others = [asyncio.ensure_future(opened._read(quick)) for _ in range(20)]
    assert sorted(await asyncio.wait_for(asyncio.gather(*others), 60)) == [*range(1, 21)]  # by another thread, soon
    assert len(set(map(id, sessions))) < 20
    assert not first.done()
    go_on.set()
    await first


async def test_a_read_that_fails_is_told_to_whoever_asked_and_nobody_else(opened: SqliteStore) -> None:
    def fails(session: Any) -> None:
        raise StoreError(url="x", detail="broken")

    asked = [opened._read(fails), opened.tenants(), opened._read(lambda session: 1 // 0), opened.tenants()]
    first, second, third, fourth = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, StoreError)
    assert isinstance(third, ZeroDivisionError)
    assert second == fourth != []


async def test_one_who_goes_away_leaves_the_others_their_answers(opened: SqliteStore) -> None:
    asked = [asyncio.ensure_future(opened.tenants()) for _ in range(50)]
    await asyncio.sleep(0)
    for one in asked[::2]:
        one.cancel()
    known = await opened.tenants()
    assert await asyncio.gather(*asked[1::2]) == [known] * 25


async def test_long_reads_on_all_threads_are_waited_for(opened: SqliteStore) -> None:
    def slow(session: Any) -> int:
        time.sleep(0.05)
        return 1

    assert sum(await asyncio.gather(*(opened._read(slow) for _ in range(3 * READERS)))) == 3 * READERS


async def test_a_closed_store_reads_nothing(opened: SqliteStore) -> None:
    await opened.tenants()
    opened._readers.close()
    with pytest.raises(RuntimeError):
        await opened.tenants()

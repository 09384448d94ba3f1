"""Workers killed with SIGKILL between spawning children and joining them: every child is made once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keptwork.audit import verify
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.jobs import commands_children, results
from keptwork.store import NewJob, Store, open_store
from tests.conformance.stage import eventually

COUNT = 40


@contextmanager
def worker(url: str, folder: Path, *twin: str) -> Iterator[None]:
    """A real process, which does not end by itself."""
    command = [sys.executable, "-m", "tests.acceptance.spawner", url, str(folder), str(COUNT), *twin]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def joined_after_a_kill(store: Store, url: str, folder: Path, *twin: str) -> tuple[int, Any]:
    """The parent, and what its join returned in the second process."""

    async def has_spawned() -> bool:
        return (folder / "spawned").exists()

    (parent,) = await store.enqueue([NewJob("parent")])
    with worker(url, folder, *twin):
        await eventually(has_spawned)
    with worker(url, folder, *twin):
        async with asyncio.timeout(30):
            return parent, await results.result(store, 1, public_id(JOB.name, parent))


@pytest.mark.timeout(60)
async def test_every_child_of_a_killed_parent_is_made_once(store: Store, database_url: str, tmp_path: Path) -> None:
    parent, answer = await joined_after_a_kill(store, database_url, tmp_path)
    assert answer == list(range(2 * COUNT))
    kids = await commands_children.listed(store, 1, parent)
    assert (len(kids), {kid["state"] for kid in kids}) == (2 * COUNT, {"succeeded"})
    assert (await store.counts(JOB))[0] == 2 * COUNT + 1
    assert (await verify.verify(store)).clean


@pytest.mark.timeout(60)
async def test_a_twin_that_forgets_what_it_spawned_is_caught_by_the_same_count(sqlite_url: str, tmp_path: Path) -> None:
    store = await open_store(sqlite_url)
    try:
        await joined_after_a_kill(store, sqlite_url, tmp_path, "forgetful")
        assert (await store.counts(JOB))[0] > 2 * COUNT + 1
    finally:
        await store.close()

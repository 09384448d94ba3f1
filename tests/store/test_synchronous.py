"""When a commit is on the disk: before it counts, or soon after, as the URL says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB
from keptwork.store import open_store
from keptwork.store.sqlite.store import SqliteStore

pytestmark = pytest.mark.acceptance

FULL, NORMAL = 2, 1
KILLS, JOBS = 5, 40


@pytest.mark.parametrize(
    ("setting", "level"), [("", FULL), ("?synchronous=full", FULL), ("?synchronous=normal", NORMAL)]
)
async def test_whoever_writes_does_so_as_the_url_says(tmp_path: Path, setting: str, level: int) -> None:
    async with Keptwork(f"sqlite:///{tmp_path}/keptwork.db{setting}") as app:
        store = await app.open()
        assert isinstance(store, SqliteStore)
        assert store._writer._db.pragma("synchronous") == level


def acknowledged_before_kill(url: str) -> list[int]:
    client = subprocess.Popen([sys.executable, "-m", "tests.store.unsynced_client", url], stdout=subprocess.PIPE)
    assert client.stdout is not None
    with client, client.stdout:
        told = [int(client.stdout.readline()) for _ in range(JOBS)]
        client.kill()
    return told


async def test_what_was_acknowledged_without_a_sync_outlives_a_client_that_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keptwork.db?synchronous=normal"
    kept = [key for _ in range(KILLS) for key in acknowledged_before_kill(url)]
    store = await open_store(url)
    assert len(await store.rows(JOB, kept, ("id",))) == KILLS * JOBS
    assert await store.faults() == []
    await store.close()

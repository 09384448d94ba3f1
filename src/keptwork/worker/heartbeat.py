"""The heartbeat: every few seconds a worker says what it is doing, for operators to see. No lease depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from keptwork.errors import StoreError
from keptwork.lifecycle import WORKER
from keptwork.store import Store
from keptwork.worker.report import Doing

BEAT_SECONDS = 10.0
KEPT_US = 3_600_000_000
KIND = "worker_heartbeat"


class Heartbeat:
    """Writes what the worker says of itself, and how much memory its process has."""

    def __init__(self, store: Store, worker: int, says: Callable[[], Doing]) -> None:
        self._store = store
        self._worker = worker
        self._says = says

    async def run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            with contextlib.suppress(StoreError):  # out of reach: the next beat tells as much
                await self.run_once()

    async def run_once(self) -> None:
        doing = self._says()
        seen = json.dumps({**doing._asdict(), "settled": doing.settled, "memory_bytes": memory_bytes()})
        await self._store.record_telemetry(WORKER, self._worker, KIND, seen, ttl_us=KEPT_US)


def memory_bytes() -> int | None:
    """What this process has in memory; none where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None

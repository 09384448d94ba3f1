"""Record every few seconds what a worker is doing, for operators. No lease depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from keptwork.core.lifecycles import WORKER
from keptwork.errors import StoreError
from keptwork.store import Store
from keptwork.workers.heartbeat_report import Doing

BEAT_SECONDS = 10.0
KEPT_US = 3_600_000_000
KIND = "worker_heartbeat"


class Heartbeat:
    """Records the worker's activity and the memory of its process."""

    def __init__(self, store: Store, worker: int, says: Callable[[], Doing]) -> None:
        self._store = store
        self._worker = worker
        self._says = says

    async def run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            with contextlib.suppress(StoreError):  # unreachable: the next record has the same information
                await self.run_once()

    async def run_once(self) -> None:
        doing = self._says()
        seen = json.dumps({**doing._asdict(), "settled": doing.settled, "memory_bytes": memory_bytes()})
        await self._store.record_telemetry(WORKER, self._worker, KIND, seen, ttl_us=KEPT_US)


def memory_bytes() -> int | None:
    """Return the resident memory of this process, or None if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None

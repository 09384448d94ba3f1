"""The crew watch: what a crash, a hand in the database or the clock left undone about crews.

Crews move in the transaction of what moves them; this is for what nobody was there to see: times that are over, shares
that ended without a word, workers that are free while somebody waits for them.
"""

from __future__ import annotations

import asyncio
import time

from detent.errors import LeaseLost, StoreError
from detent.service import crews
from detent.store import Store
from detent.worker.outage import Outage

BEAT_SECONDS = 1.0
RESTS = 20  # times as long as it took


class CrewWatch:
    """Looks for crews that should have moved; every process may have one. Where there are none it asks one question."""

    def __init__(self, store: Store, outage: Outage) -> None:
        self._store = store
        self._outage = outage

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await crews.mend(self._store)
                self._outage.over("watch crews")
            except LeaseLost:
                pass  # somebody else moved it just now; there is a next time
            except StoreError as error:
                self._outage.endure("watch crews", error)
            await asyncio.sleep(max(BEAT_SECONDS, (time.monotonic() - began) * RESTS))

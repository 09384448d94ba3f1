"""The pump: lets jobs go that limits hold back, when they are due or their rates allow."""

from __future__ import annotations

from keptwork.worker.lookout import BEAT_SECONDS, Lookout

MOST_AT_ONCE = 500


class Pump(Lookout):
    """Looks when something may have become free. Whoever ends a job looks after its limit in the same write, so this is
    only for what time brings, and what is new."""

    name = "pump"

    async def run_once(self) -> float:
        """While something is due, and nobody else is at it."""
        while (at := await self._store.next_pump()) is not None:
            seconds = (at - await self._store.now()) / 1_000_000
            if seconds > 0:
                return seconds
            if await self._store.pump(MOST_AT_ONCE):
                self._found()
            elif await self._store.next_pump() == at:
                return BEAT_SECONDS / 10
        return BEAT_SECONDS

"""Release jobs that limits hold, when their rates allow."""

from __future__ import annotations

from keptwork.maintenance.periodic import BEAT_SECONDS, Lookout

MOST_STARTED_AT_ONCE = 500


class Pump(Lookout):
    """Checks when a limit might have room.

    The write that completes a job also updates its limit, so this task handles only the passage of time and new jobs.
    """

    name = "pump"

    async def run_once(self) -> float:
        """Promote jobs while some are due and no other process promotes them."""
        while (at := await self._store.next_pump()) is not None:
            seconds = (at - await self._store.now()) / 1_000_000
            if seconds > 0:
                return seconds
            if await self._store.pump(MOST_STARTED_AT_ONCE):
                self._found()
            elif await self._store.next_pump() == at:
                return BEAT_SECONDS / 10
        return BEAT_SECONDS

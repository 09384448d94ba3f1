"""Watch open breakers: hold the jobs that need them, release one as a probe after the cooldown, and all of them on
close."""

from __future__ import annotations

from collections.abc import AsyncIterator

from keptwork.jobs import held_jobs
from keptwork.maintenance.periodic import BEAT_SECONDS, Lookout
from keptwork.store.contract.breakers import Watched

MOST_BREAKERS_AT_ONCE = 100


class BreakerWatch(Lookout):
    """Looks when a breaker might have moved here, when a cooldown ends, and at least once per beat."""

    name = "breakers"

    async def run_once(self) -> float:
        """Process a batch for each breaker in turn, so that no breaker waits for all jobs of another."""
        seconds, more = BEAT_SECONDS, True
        while more:
            more = False
            async for one, now in self._opened():
                if held_jobs.is_due(one, now):
                    more |= await self._tend(one.row["tenant_id"], one.row["name"])
                elif one.holding and (ahead := held_jobs.due_at(one.row) - now) > 0:
                    seconds = min(seconds, ahead / 1_000_000)
        return seconds

    async def _opened(self) -> AsyncIterator[tuple[Watched, int]]:
        """Yield every breaker to process, with the current time. Usually there is none, which costs one read."""
        page = await self._store.breakers_that_hold(MOST_BREAKERS_AT_ONCE)
        while page:
            now = await self._store.now()
            for one in page:
                yield one, now
            last = page[-1].row["id"]
            page = (
                await self._store.breakers_that_hold(MOST_BREAKERS_AT_ONCE, last)
                if len(page) == MOST_BREAKERS_AT_ONCE
                else []
            )

    async def _tend(self, tenant_id: int, name: str) -> bool:
        tended = await held_jobs.tend(self._store, tenant_id, name)
        if tended.let_go:
            self._found()
        return tended.more

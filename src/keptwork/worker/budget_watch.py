"""The watch over jobs that budgets hold back: lets them go when there is money for them again, or the day is over."""

from __future__ import annotations

from collections.abc import AsyncIterator

from keptwork.budget import HOLD
from keptwork.service import budget_caps
from keptwork.worker.lookout import BEAT_SECONDS, Lookout

MOST_AT_ONCE = 100
FIRST = (0, "")


class BudgetWatch(Lookout):
    """Looks at what holds jobs back at least once in a beat. Nearly always nothing does, and that is one read. It goes
    by the jobs, not by the budgets: so none is forgotten that was held just when its budget was raised."""

    name = "budgets"
    _after = FIRST

    async def run_once(self) -> float:
        """A portion for each, again and again, so that none waits for all of another's jobs."""
        more = [hold async for hold in self._holds() if await self._tend(*hold)]
        while more:
            more = [hold for hold in more if await self._tend(*hold)]
        return BEAT_SECONDS

    async def _holds(self) -> AsyncIterator[tuple[int, str]]:
        """Some of them, and the next time those that come after."""
        for _ in range(MOST_AT_ONCE):
            found = await self._store.next_hold(self._after)
            self._after = found or FIRST
            if found is None:
                return
            if found[1].startswith(HOLD):
                yield found

    async def _tend(self, tenant_id: int, hold: str) -> bool:
        tended = await budget_caps.tend(self._store, tenant_id, hold)
        if tended.let_go:
            self._found()
        return tended.more

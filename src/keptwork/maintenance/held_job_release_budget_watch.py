"""Watch jobs that budgets hold: lift their holds when the budget has room again or the day ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

from keptwork.agents import budget_caps
from keptwork.core.money import HOLD
from keptwork.maintenance.periodic import BEAT_SECONDS, Lookout

MOST_BUDGETS_AT_ONCE = 100
FIRST = (0, "")


class BudgetWatch(Lookout):
    """Looks at budget holds at least once per beat. Usually there is none, which costs one read.

    It starts from the held jobs, not from the budgets, so it finds a job that was held just when its budget was raised.
    """

    name = "budgets"
    _after = FIRST

    async def run_once(self) -> float:
        """Process a batch for each hold in turn, so that no hold waits for all jobs of another."""
        more = [hold async for hold in self._holds() if await self._tend(*hold)]
        while more:
            more = [hold for hold in more if await self._tend(*hold)]
        return BEAT_SECONDS

    async def _holds(self) -> AsyncIterator[tuple[int, str]]:
        """Yield up to `MOST_AT_ONCE` holds. The next call continues after them."""
        for _ in range(MOST_BUDGETS_AT_ONCE):
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

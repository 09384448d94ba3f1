"""Releases jobs that limits, breakers or budgets held."""

from __future__ import annotations

from collections.abc import AsyncIterator

from keptwork.agents import budget_caps
from keptwork.core.money import HOLD
from keptwork.jobs import held_jobs
from keptwork.maintenance.periodic import BEAT_SECONDS, Lookout
from keptwork.store.contract.breakers import Watched

# Release jobs that limits hold, when their rates allow.


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


# Watch open breakers: hold the jobs that need them, release one as a probe after the cooldown, and all of them on
# close.


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


# Watch jobs that budgets hold: lift their holds when the budget has room again or the day ends.


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

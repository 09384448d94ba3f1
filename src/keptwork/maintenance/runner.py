"""Maintenance that every process with a database connection does for all workers, whether or not it runs jobs.

It reclaims jobs with expired leases, fires schedules, moves flows and held jobs when they are due, delivers webhooks,
and seals the event log. Any number of processes can run it; the database assigns each item to one of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from keptwork.audit.seals import Sealer
from keptwork.maintenance.dead_workers import Watchman
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.flow_timers import FlowWatch
from keptwork.maintenance.held_job_release import BreakerWatch, BudgetWatch, Pump
from keptwork.maintenance.periodic import Outage
from keptwork.maintenance.reconciler import FollowUp
from keptwork.maintenance.schedule_ticks import Scheduler
from keptwork.store import Job, Store
from keptwork.store.counters import flushing
from keptwork.webhooks.delivery import Courier
from keptwork.workers.registration import SILENT_US

SERVER = "server"

logger = logging.getLogger("keptwork")


class Housekeeping:
    """The maintenance tasks. Create it on the event loop that runs them.

    `found` is called when jobs might have become due.
    """

    def __init__(
        self, store: Store, found: Callable[[], None], outage: Outage, chance: Callable[[], float] = random.random
    ) -> None:
        self._reaper = Reaper(store, found, outage)
        self._follow_up = FollowUp(store, outage)
        self._pump = Pump(store, found, outage)
        self._flows = FlowWatch(store, outage)
        self._breakers = BreakerWatch(store, found, outage)
        self._budgets = BudgetWatch(store, found, outage)
        self._scheduler = Scheduler(store, outage)
        self._courier = Courier(store, outage, chance)
        self._sealer = Sealer(store, chance)

    def duties(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks. Each runs until it is cancelled."""
        watching = [self._flows.run(), self._breakers.run(), self._budgets.run(), self._pump.run()]
        others = [self._scheduler.run(), self._courier.run(), self._sealer.run()]
        return [self._reaper.run(), self._follow_up.run(), *watching, *others]

    def begun(self, jobs: Iterable[Job]) -> None:
        """Note jobs that have just started."""
        self._flows.begun(jobs)

    def new_jobs(self) -> None:
        """Check limits for new jobs."""
        self._pump.ring()

    def stirred(self) -> None:
        """Check breakers, because one might have moved."""
        self._breakers.ring()

    async def look(self) -> int:
        """Move what time has freed: expired leases, flows, crews, and jobs held by a limit, breaker, or budget.

        Return how many items other than queued jobs were moved.
        """
        await self._breakers.look()
        await self._budgets.look()
        await self._pump.look()
        return await self._reaper.run_once() + await self._flows.look() + await self._follow_up.run_once()

    async def deliver(self) -> None:
        """Make every delivery attempt that is due now."""
        await self._courier.run_once()

    async def end(self) -> None:
        """Seal the log a last time after the tasks have ended. This takes at most a moment and never raises."""
        await self._sealer.run_last()


class NoHousekeeping(Housekeeping):
    """Maintenance of a worker without a database: its server does it."""

    def __init__(self) -> None:
        """Create nothing."""

    def duties(self) -> list[Coroutine[Any, Any, None]]:
        return []

    def begun(self, jobs: Iterable[Job]) -> None:
        """Do nothing: the server records it."""

    def new_jobs(self) -> None:
        """Do nothing: the server checks."""

    def stirred(self) -> None:
        """Do nothing: the server checks."""

    async def look(self) -> int:
        """Do nothing: the server checks."""
        return 0

    async def deliver(self) -> None:
        """Do nothing: the server delivers."""

    async def end(self) -> None:
        """Do nothing: the server seals."""


@asynccontextmanager
async def keeping_house(store: Store | None) -> AsyncIterator[None]:
    """Run maintenance inside this block, for a process that runs no jobs itself.

    It also ends unresponsive workers. If one task fails, the failure is logged and the others continue. If `store` is
    None, a worker in the same process does all of this.
    """
    if store is None:
        yield
        return
    house = Housekeeping(store, lambda: None, Outage())
    watching = Watchman(store, SILENT_US, SERVER).run()
    tasks = [asyncio.create_task(_said(duty)) for duty in (*house.duties(), watching, flushing(store))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await house.end()


async def _said(duty: Coroutine[Any, Any, None]) -> None:
    try:
        await duty
    except Exception:
        logger.exception(
            "housekeeping has lost one of its duties; a worker with the database, or a restart, takes it up"
        )

"""Housekeeping: what every process with a database of its own does for all, whether it runs jobs or serves others.

Leases that are over are reaped, schedules fired, flows and held jobs moved on when their time has come, what is to be
told to the outside is delivered, and the log is sealed. Any number of processes may do it; each thing is done by one of
them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from keptwork.store import Job, Store
from keptwork.store.tally import flushing
from keptwork.worker.breaker_watch import BreakerWatch
from keptwork.worker.budget_watch import BudgetWatch
from keptwork.worker.courier import Courier
from keptwork.worker.flow_watch import FlowWatch
from keptwork.worker.follow_up import FollowUp
from keptwork.worker.outage import Outage
from keptwork.worker.pump import Pump
from keptwork.worker.reaper import Reaper
from keptwork.worker.scheduler import Scheduler
from keptwork.worker.sealer import Sealer
from keptwork.worker.settings import SILENT_US
from keptwork.worker.watchman import Watchman

SERVER = "server"

logger = logging.getLogger("keptwork")


class Housekeeping:
    """Made on the event loop it runs on. `found` hears that jobs may have become due."""

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
        """Each goes on without end."""
        watching = [self._flows.run(), self._breakers.run(), self._budgets.run(), self._pump.run()]
        others = [self._scheduler.run(), self._courier.run(), self._sealer.run()]
        return [self._reaper.run(), self._follow_up.run(), *watching, *others]

    def begun(self, jobs: Iterable[Job]) -> None:
        """These jobs were just started."""
        self._flows.begun(jobs)

    def new_jobs(self) -> None:
        """There are new ones, of which a limit may let some go."""
        self._pump.ring()

    def stirred(self) -> None:
        """A breaker may have moved."""
        self._breakers.ring()

    async def look(self) -> int:
        """Moves on, now, what time has freed: leases and flows, crews, and jobs that no limit, no breaker and no budget
        holds back any longer. Returns how many things that were no jobs in a queue."""
        await self._breakers.look()
        await self._budgets.look()
        await self._pump.look()
        return await self._reaper.run_once() + await self._flows.look() + await self._follow_up.run_once()

    async def deliver(self) -> None:
        """Makes every attempt to deliver something that is due now."""
        await self._courier.run_once()

    async def end(self) -> None:
        """What is done once more when its duties have ended; it takes a moment at most, and fails nobody."""
        await self._sealer.run_last()


class NoHousekeeping(Housekeeping):
    """For a worker without a database: the server it works for keeps house."""

    def __init__(self) -> None:
        """It has nothing to look after."""

    def duties(self) -> list[Coroutine[Any, Any, None]]:
        return []

    def begun(self, jobs: Iterable[Job]) -> None:
        """The server knows."""

    def new_jobs(self) -> None:
        """The server looks."""

    def stirred(self) -> None:
        """The server looks."""

    async def look(self) -> int:
        """The server looks."""
        return 0

    async def deliver(self) -> None:
        """The server delivers."""

    async def end(self) -> None:
        """The server seals."""


@asynccontextmanager
async def keeping_house(store: Store | None) -> AsyncIterator[None]:
    """For a process that runs no jobs itself, as long as the block lasts: it also ends workers that are not heard of.
    What cannot go on is said, and the rest goes on. Without a store, a worker beside it does all that."""
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

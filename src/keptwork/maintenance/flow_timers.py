"""Wake flows whose timers are due, and record that flows have started."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from keptwork.errors import KeptworkError, StoreError
from keptwork.flows import commands as flows
from keptwork.maintenance.periodic import Outage
from keptwork.store import Job, Store

LONGEST_NAP = 1.0
SHORT_FLOW_SECONDS = 0.02
MOST_REMEMBERED = 10_000


class FlowWatch:
    """Watches flows; every worker can have one. `begun` receives jobs that have just started."""

    def __init__(self, store: Store, outage: Outage) -> None:
        self._store = store
        self._outage = outage
        self._known: set[str] = set()
        self._new: list[tuple[str, int]] = []
        self._ring = asyncio.Event()

    def begun(self, jobs: Iterable[Job]) -> None:
        """Remember the flows of these jobs, so that their start is recorded."""
        for job in jobs:
            if job.step_id is not None:
                self._note(json.loads(job.payload)["flow"], job.tenant_id)

    def _note(self, flow: str, tenant_id: int) -> None:
        if flow not in self._known:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known.add(flow)
            self._new.append((flow, tenant_id))
            self._ring.set()

    async def run(self) -> None:
        while True:
            try:
                await self.look()
                self._outage.over("flows")
            except StoreError as error:
                self._outage.endure("flows", error)
            await self._nap()

    async def look(self) -> int:
        """Record started flows and wake due ones. Return how many flows a timer has moved."""
        self._ring.clear()
        new, self._new = self._new, []
        for one in new:
            await self._began(one)
        at = await self._store.next_flow_wake()
        if at is not None and at <= await self._store.now():
            return await flows.wake(self._store)
        return 0

    async def _began(self, flow: tuple[str, int]) -> None:
        try:
            await flows.began(self._store, [flow])
        except StoreError:
            self._new.append(flow)
            raise
        except KeptworkError:
            return  # it was deleted, or has finished and so has started

    async def _nap(self) -> None:
        """Wait for an unrecorded start, but at most `LONGEST_NAP`.

        Then wait briefly: the start of a short flow is written together with its end.
        """
        try:
            await asyncio.wait_for(self._ring.wait(), LONGEST_NAP)
        except TimeoutError:
            return
        await asyncio.sleep(SHORT_FLOW_SECONDS)

"""The follow-up: what a job's end means for others, where whoever ended it did not see to it.

Children of a cancelled job are cancelled, and questions of a job that has ended are withdrawn. Whoever cancels a job
does so at once; this is for what a crash left over, and for jobs that their own handlers cancelled. A job that was
asked to stop, and began to wait before its handler heard of it, is cancelled. Crews move that should have: when their
time is over, and where no transaction saw to it. A step whose job was ended by somebody who did not tell its flow
becomes what its job has become, and so does an agent job.
"""

from __future__ import annotations

import asyncio
import time

from keptwork.errors import StoreError
from keptwork.service import agent_moves, children, crew_mend, lost_steps
from keptwork.store import Store
from keptwork.worker.outage import Outage

BEAT_SECONDS = 1.0
RESTS = 20  # times as long as it took: with many thousands of parents at work a look takes a while
MOST_AT_ONCE = 100


class FollowUp:
    """Looks for what is left behind; every process may have one."""

    def __init__(self, store: Store, outage: Outage) -> None:
        self._store = store
        self._outage = outage

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.run_once()
                self._outage.over("follow up")
            except StoreError as error:
                self._outage.endure("follow up", error)
            await asyncio.sleep(max(BEAT_SECONDS, (time.monotonic() - began) * RESTS))

    async def run_once(self) -> int:
        """Returns how many jobs it ended, steps, agent jobs and crews it moved, and questions it withdrew."""
        done = 0
        for tenant_id, job in await self._store.stopped_waits(MOST_AT_ONCE):
            done += await children.cancel_stopped(self._store, tenant_id, job)
        for tenant_id, parent in await self._store.cancelled_parents(MOST_AT_ONCE):
            done += await children.cancel(self._store, tenant_id, parent)
        done += await lost_steps.catch_up(self._store, MOST_AT_ONCE)
        done += await agent_moves.mend(self._store, MOST_AT_ONCE)
        return done + await crew_mend.mend(self._store) + await self._store.withdraw_approvals()

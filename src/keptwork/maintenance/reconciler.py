"""Complete the consequences of finished jobs that the transaction which finished them did not write.

Children of a cancelled job are cancelled, and approval requests of a finished job are withdrawn. A cancellation
normally does so in its own transaction. This task handles what a crash interrupted, and jobs that their own handlers
cancelled. A job that suspended before its handler noticed a cancellation request is cancelled. Crews that timed out or
missed a move are moved. A step or an agent job takes the outcome of its job, if the job was finished without telling
its flow.
"""

from __future__ import annotations

import asyncio
import time

from keptwork.agents import engine as agent_moves
from keptwork.errors import StoreError
from keptwork.jobs import commands_children
from keptwork.maintenance import reconciler_crew_mend, reconciler_lost_steps
from keptwork.maintenance.periodic_outage import Outage
from keptwork.store import Store

BEAT_SECONDS = 1.0
RESTS = 20  # Multiple of the duration of a check: with thousands of running parents a check takes a while.
MOST_AT_ONCE = 100


class FollowUp:
    """Finds and completes unfinished consequences; every process can have one."""

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
        """Return the number of jobs finished, steps, agent jobs, and crews moved, and approval requests withdrawn."""
        done = 0
        for tenant_id, job in await self._store.stopped_waits(MOST_AT_ONCE):
            done += await commands_children.cancel_stopped(self._store, tenant_id, job)
        for tenant_id, parent in await self._store.cancelled_parents(MOST_AT_ONCE):
            done += await commands_children.cancel_children(self._store, tenant_id, parent)
        done += await reconciler_lost_steps.catch_up(self._store, MOST_AT_ONCE)
        done += await agent_moves.mend(self._store, MOST_AT_ONCE)
        return done + await reconciler_crew_mend.mend(self._store) + await self._store.withdraw_approvals()

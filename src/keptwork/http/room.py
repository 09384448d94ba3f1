"""Room for more jobs: how many of a tenant may wait.

The jobs that wait are counted in the database, but not for every request: after a count as many are let in as half of
what was left, or until the count is old. So the bound is kept to about, not to the job: servers that let in at the same
time, and jobs that come by other ways than this API, are seen at the next count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from keptwork.errors import QueueFull

COUNT_SECONDS = 10.0
FULL_SECONDS = 1.0
MOST_KNOWN = 10_000

Count = Callable[[int, int], Awaitable[int]]
"""How many jobs of a tenant wait, counted no further than that."""


class _Tenant:
    """What is known of one tenant, and until when."""

    __slots__ = ("full_until", "left", "lock", "most", "until")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.left = self.most = 0
        self.until = self.full_until = 0.0

    def is_old(self, now: float, most: int, jobs: int) -> bool:
        """Whether it must be counted anew before that many come in. Where there is no room, not at once again."""
        if most != self.most:
            return True
        return now >= self.full_until and (now >= self.until or self.left < jobs)


class Room:
    """For all tenants of a server."""

    def __init__(self, count: Count, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._count, self._monotonic = count, monotonic
        self._tenants: dict[int, _Tenant] = {}

    async def take(self, tenant_id: int, most: int, jobs: int = 1) -> None:
        """Lets about so many jobs in, or refuses because too many wait; 0 is no bound."""
        if not most:
            return
        known = self._known(tenant_id)
        async with known.lock:
            now = self._monotonic()
            if known.is_old(now, most, jobs):
                await self._recount(tenant_id, known, most, now)
            if now < known.full_until:
                raise QueueFull(most=most, seconds=int(FULL_SECONDS))
            known.left -= jobs

    def _known(self, tenant_id: int) -> _Tenant:
        found = self._tenants.get(tenant_id)
        if found is None:
            if len(self._tenants) >= MOST_KNOWN:
                self._tenants.clear()  # they are counted again when they come again
            found = self._tenants[tenant_id] = _Tenant()
        return found

    async def _recount(self, tenant_id: int, known: _Tenant, most: int, now: float) -> None:
        free = most - await self._count(tenant_id, most)
        known.most, known.left, known.until = most, free // 2, now + COUNT_SECONDS
        known.full_until = 0.0 if free else now + FULL_SECONDS

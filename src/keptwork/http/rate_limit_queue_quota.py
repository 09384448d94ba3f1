"""Limit the queued jobs of a tenant.

Queued jobs are counted in the database, but not for every request. After a count, half of the free places are granted,
or fewer if the count gets old. The limit is therefore approximate: the next count finds jobs that other servers
admitted at the same time, and jobs that were not enqueued through this API.
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
"""Returns the number of queued jobs of a tenant, counted up to a limit."""


class _Tenant:
    """The known capacity of one tenant, and how long it is valid."""

    __slots__ = ("full_until", "left", "lock", "most", "until")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.left = self.most = 0
        self.until = self.full_until = 0.0

    def is_old(self, now: float, most: int, jobs: int) -> bool:
        """Return whether to count again before this many jobs. A full queue is not counted again immediately."""
        if most != self.most:
            return True
        return now >= self.full_until and (now >= self.until or self.left < jobs)


class Room:
    """The capacity of all tenants of a server."""

    def __init__(self, count: Count, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._count, self._monotonic = count, monotonic
        self._tenants: dict[int, _Tenant] = {}

    async def take(self, tenant_id: int, most: int, jobs: int = 1) -> None:
        """Admit about this many jobs, or raise `QueueFull`. A limit of 0 means unlimited."""
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
                self._tenants.clear()  # forgotten tenants are counted again at their next request
            found = self._tenants[tenant_id] = _Tenant()
        return found

    async def _recount(self, tenant_id: int, known: _Tenant, most: int, now: float) -> None:
        free = most - await self._count(tenant_id, most)
        known.most, known.left, known.until = most, free // 2, now + COUNT_SECONDS
        known.full_until = 0.0 if free else now + FULL_SECONDS

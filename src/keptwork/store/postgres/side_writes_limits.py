"""Concurrency and rate limits on PostgreSQL, by functions of the database: `keptwork_promote` and the functions it
calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import asyncpg

from keptwork.core.decide import Change
from keptwork.store.contract.records import LimitKey

Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]


async def settle(fetch: Fetch, changes: Sequence[Change], ring: bool) -> int:
    """Promote jobs after these moves. Jobs that returned to the queue are checked again at their due time."""
    back = [change.id for change in changes if change.move.raises_epoch]
    if back:
        await fetch("wake_later", ids=back)
    return await promote(
        fetch, {LimitKey.of(c.tenant_id, c.limit_key) for c in changes if c.limit_key is not None}, ring
    )


async def pump(fetch: Fetch, limit: int, ring: bool) -> int:
    """Promote jobs for the keys that are due for a check. The keys that only this transaction knows come first, and it
    waits for their locks. The other keys follow, without those that another transaction has locked."""
    let_go = await promote(fetch, {LimitKey(*row) for row in await fetch("take_wakes", limit=limit)}, ring)
    return let_go + await promote(fetch, {LimitKey(*row) for row in await fetch("keys_to_pump", limit=limit)}, ring)


async def promote(fetch: Fetch, keys: Iterable[LimitKey], ring: bool) -> int:
    """Promote due jobs that these keys hold, as far as their limits allow. Return the number of jobs."""
    found = sorted(keys)
    if not found:
        return 0
    tenants, names = [list(column) for column in zip(*found, strict=True)]
    return int((await fetch("promote", tenant_id=tenants, key=names, ring=ring))[0][0])

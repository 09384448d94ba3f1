"""Limits on PostgreSQL, by functions of the database: `keptwork_promote` and what it calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import asyncpg

from keptwork.lifecycle.machine import Change
from keptwork.store.records import LimitKey

Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]


async def settle(fetch: Fetch, changes: Sequence[Change], ring: bool) -> int:
    """These have moved: what they held may go to others; those that went back are due when they are."""
    back = [change.id for change in changes if change.move.raises_epoch]
    if back:
        await fetch("wake_later", ids=back)
    return await promote(
        fetch, {LimitKey.of(c.tenant_id, c.limit_key) for c in changes if c.limit_key is not None}, ring
    )


async def pump(fetch: Fetch, limit: int, ring: bool) -> int:
    """Looks at the keys that are due for it. First come those that this transaction alone knows of, for which it waits;
    then those that others can see too, and which it leaves to them if they are at it."""
    let_go = await promote(fetch, {LimitKey(*row) for row in await fetch("take_wakes", limit=limit)}, ring)
    return let_go + await promote(fetch, {LimitKey(*row) for row in await fetch("keys_to_pump", limit=limit)}, ring)


async def promote(fetch: Fetch, keys: Iterable[LimitKey], ring: bool) -> int:
    """Lets go what these keys hold back, as far as they allow; returns how many jobs."""
    found = sorted(keys)
    if not found:
        return 0
    tenants, names = [list(column) for column in zip(*found, strict=True)]
    return int((await fetch("promote", tenant_id=tenants, key=names, ring=ring))[0][0])

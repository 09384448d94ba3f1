"""The jobs that breakers hold back: which they are, when one of them is let go to try, and when all are.

Everything is done in portions, each in a transaction of its own that has locked the breaker: an open breaker over a
hundred thousand jobs keeps nobody waiting, and no job is held by one that has been closed meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from keptwork.breaker import hold_of
from keptwork.lifecycle import BREAKER, decide, insist
from keptwork.lifecycle.breaker import CLOSED, HALF_OPEN, OPEN
from keptwork.service.acknowledged import acknowledged
from keptwork.service.breakers import find, freed, locked
from keptwork.service.decisions import decided
from keptwork.store import Store, Transaction
from keptwork.store.breakers import Row, Watched

PORTION = 500
"""So many jobs are held back or let go in one transaction."""

PATIENCE_US = 5_000_000
"""So long a job that was let go to be the probe has to begin, before another is."""


class Tended(NamedTuple):
    """What was done for what holds jobs back: how many jobs were let go, and whether there is more to do at once."""

    let_go: int = 0
    more: bool = False


def is_due(watched: Watched, now: int) -> bool:
    """Whether there is something to do for it: to hold back, to let go, or to find a probe."""
    row = watched.row
    if row["state"] == CLOSED.name or watched.unheld:
        return True
    if row["state"] == HALF_OPEN.name and row["probe_job"] is not None:
        return not watched.probing
    return watched.holding and due_at(row) <= now


def due_at(row: Row) -> int:
    """When the next job may be let go to try: after the cooldown, and not while another that was is yet to begin."""
    tried = 0 if row["candidate"] is None else row["candidate_at"] + PATIENCE_US
    return max(row["probe_at"] if row["state"] == OPEN.name else 0, tried)


async def tend(store: Store, tenant_id: int, name: str) -> Tended:
    """Does what is to be done for a breaker that has opened, a portion of it in one transaction."""
    return await store.atomically(lambda tx: _tended(tx, tenant_id, name), weight=PORTION)


async def _tended(tx: Transaction, tenant_id: int, name: str) -> Tended:
    row = await tx.lock_breaker(tenant_id, name)
    if row is None:
        return Tended()
    if row["state"] == CLOSED.name:
        return await _let_all_go(tx, row)
    if await tx.hold_back(tenant_id, hold_of(name), PORTION, row["candidate"]) == PORTION:
        return Tended(more=True)
    return await _let_one_go(tx, row)


async def _let_all_go(tx: Transaction, row: Row) -> Tended:
    """Until none is held; only then is the breaker done with."""
    tenant_id, hold = row["tenant_id"], hold_of(row["name"])
    gone = await tx.let_go(tenant_id, hold, PORTION)
    if gone < PORTION and not await tx.holds_any(tenant_id, hold):
        await tx.amend(BREAKER, [row["id"]], tenant_id, holds=0)
    return Tended(gone, gone == PORTION)


async def _let_one_go(tx: Transaction, row: Row) -> Tended:
    """One held job, to be the probe when it is claimed. If it does not begin, the next is of another queue."""
    free, now = await freed(tx, row), await tx.now()
    if free is None or due_at(free) > now:
        return Tended()
    gone = await tx.let_one_go(row["tenant_id"], hold_of(row["name"]), row["candidate_queue"])
    if gone is None:
        return Tended()
    chosen = {"candidate": gone[0], "candidate_queue": gone[1], "candidate_at": now}
    await tx.amend(BREAKER, [row["id"]], row["tenant_id"], **chosen)
    return Tended(1)


@acknowledged
async def reset(store: Store, tenant_id: int, name: str, *, actor: str, reason: str) -> int:
    """Closes a breaker that is open, because somebody says so, and lets go all that it holds; returns how many. One
    that is closed refuses."""
    own = (await find(store, tenant_id, name)).row["name"]
    first = await close(store, tenant_id, own, actor=actor, reason=reason)
    return first.let_go + (await all_gone(partial(tend, store, tenant_id, own)) if first.more else 0)


@acknowledged
async def close(store: Store, tenant_id: int, name: str, *, actor: str, reason: str) -> Tended:
    """The same, in one transaction: the first jobs are let go with it, and workers let the others go."""
    seen = (await find(store, tenant_id, name)).row
    decided(store, BREAKER, seen, "reset", actor=actor, reason=reason)

    async def closed(tx: Transaction) -> Tended:
        row = await locked(tx, tenant_id, seen["name"])
        await tx.apply([insist(decide(BREAKER, row, "reset", actor=actor, reason=reason))])
        await tx.amend(BREAKER, [row["id"]], tenant_id, holds=1)
        return await _tended(tx, tenant_id, seen["name"])

    return await store.atomically(closed, weight=PORTION)


async def all_gone(tend: Callable[[], Awaitable[Tended]]) -> int:
    """Lets jobs go portion after portion, until there is no more to do at once; returns how many."""
    total = 0
    while (tended := await tend()).more:
        total += tended.let_go
    return total + tended.let_go

"""The jobs that breakers hold: set their holds, lift one for a probe, and lift all.

Each portion has its own transaction, which locks the breaker. A breaker that is open for 100,000 jobs therefore blocks
other transactions only briefly, and no job is held by a breaker that has closed meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from keptwork.core.lifecycles import BREAKER, decide, insist
from keptwork.core.lifecycles.breaker import CLOSED, HALF_OPEN, OPEN
from keptwork.jobs.breaker import hold_of
from keptwork.jobs.breakers import find, freed, locked
from keptwork.store import Store, Transaction
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.breakers import Row, Watched
from keptwork.store.counters_decisions import decided

PORTION = 500
"""Maximum number of holds that one transaction sets or lifts."""

PATIENCE_US = 5_000_000
"""Time for a probe candidate to start, before the next candidate is chosen."""


class Tended(NamedTuple):
    """The number of jobs whose holds were lifted, and whether there is more to do immediately."""

    let_go: int = 0
    more: bool = False


def is_due(watched: Watched, now: int) -> bool:
    """Return whether a breaker needs work: set holds, lift holds, or choose a probe."""
    row = watched.row
    if row["state"] == CLOSED.name or watched.unheld:
        return True
    if row["state"] == HALF_OPEN.name and row["probe_job"] is not None:
        return not watched.probing
    return watched.holding and due_at(row) <= now


def due_at(row: Row) -> int:
    """Return when the next probe candidate can be chosen.

    It is after the cooldown, and after an earlier candidate had its time to start.
    """
    tried = 0 if row["candidate"] is None else row["candidate_at"] + PATIENCE_US
    return max(row["probe_at"] if row["state"] == OPEN.name else 0, tried)


async def tend(store: Store, tenant_id: int, name: str) -> Tended:
    """Do the pending work for a breaker, one portion of it in one transaction."""
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
    """Lift a portion of the holds. The breaker is marked as holding nothing only when no hold is left."""
    tenant_id, hold = row["tenant_id"], hold_of(row["name"])
    gone = await tx.let_go(tenant_id, hold, PORTION)
    if gone < PORTION and not await tx.holds_any(tenant_id, hold):
        await tx.amend(BREAKER, [row["id"]], tenant_id, holds=0)
    return Tended(gone, gone == PORTION)


async def _let_one_go(tx: Transaction, row: Row) -> Tended:
    """Lift the hold of one job, which becomes the probe when it is claimed.

    If it does not start, the next candidate comes from another queue.
    """
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
    """Close an open breaker for an operator, lift all its holds, and return how many.

    A closed breaker raises `InvalidTransition`.
    """
    own = (await find(store, tenant_id, name)).row["name"]
    first = await close(store, tenant_id, own, actor=actor, reason=reason)
    return first.let_go + (await all_gone(partial(tend, store, tenant_id, own)) if first.more else 0)


@acknowledged
async def close(store: Store, tenant_id: int, name: str, *, actor: str, reason: str) -> Tended:
    """Close a breaker in one transaction, and lift its first holds. Workers lift the others."""
    seen = (await find(store, tenant_id, name)).row
    decided(store, BREAKER, seen, "reset", actor=actor, reason=reason)

    async def closed(tx: Transaction) -> Tended:
        row = await locked(tx, tenant_id, seen["name"])
        await tx.apply([insist(decide(BREAKER, row, "reset", actor=actor, reason=reason))])
        await tx.amend(BREAKER, [row["id"]], tenant_id, holds=1)
        return await _tended(tx, tenant_id, seen["name"])

    return await store.atomically(closed, weight=PORTION)


async def all_gone(tend: Callable[[], Awaitable[Tended]]) -> int:
    """Lift holds portion by portion until no immediate work is left, and return how many."""
    total = 0
    while (tended := await tend()).more:
        total += tended.let_go
    return total + tended.let_go

"""Repair crews after crashes and manual edits, and apply their timeouts.

Crews normally move in the transaction of the cause. This module handles what no such transaction has seen: expired
timeouts, shares that ended without a move of their crew, and free workers that a crew waits for.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from keptwork.core import ids
from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import CREW, JOB
from keptwork.crews import commands as crews
from keptwork.crews.engine import ACTOR as CREW_ACTOR
from keptwork.crews.engine import allocate, anyone_to_let_go, call_off, lock_of, look_at
from keptwork.errors import FlowBusy, InvalidTransition
from keptwork.flows import engine as advance
from keptwork.jobs.complete import again_if_moved
from keptwork.store import Store, Transaction
from keptwork.store.contract.crews import A_CREW

MOST_AT_ONCE = 100

CrewRow = dict[str, Any]


async def mend(store: Store) -> int:
    """Move crews that should have moved, assign free workers, and return how many were found.

    Without crews, this takes one query.
    """
    tenants = await store.crew_tenants()
    found = 0
    if tenants:
        for tenant_id, key in await store.crews_amiss(MOST_AT_ONCE):
            with contextlib.suppress(FlowBusy, InvalidTransition):  # another transaction or an operator moves it
                await again_if_moved(store, partial(_mend, tenant_id=tenant_id, key=key))
                found += 1
    for tenant_id in tenants:
        found += await _wake_forgotten(store, tenant_id)
        if await anyone_to_let_go(store, tenant_id):
            found += await store.atomically(lambda tx, tenant_id=tenant_id: _allocate(tx, tenant_id))  # type: ignore[misc]
    return found


async def _mend(tx: Transaction, tenant_id: int, key: int) -> None:
    row = await tx.get(CREW, key, tenant_id)
    if row is None:
        return
    await tx.lock_trees([crews.tree_of(row), lock_of(tenant_id)])
    row = await tx.get(CREW, key, tenant_id)
    if row is None or row["completed_at"] is not None:
        return
    over: list[CrewRow] = []
    if because := await _lost_cause(tx, row):
        over = await call_off(tx, row, because, CREW_ACTOR)
    elif row["state"] == CREW.initial.name:
        await crews.validate(tx, key)
    else:
        over = await look_at(tx, [key])
    await allocate(tx, tenant_id)
    await advance.crews_ended(tx, over)


async def _lost_cause(tx: Transaction, row: CrewRow) -> str | None:
    if row["deadline_at"] is not None and row["deadline_at"] <= await tx.now():
        return "timeout"
    parent = None if row["parent_id"] is None else await tx.get(CREW, row["parent_id"], row["tenant_id"])
    if parent is not None and parent["completed_at"] is not None:
        return f"crew {public_id(CREW.name, parent['id'])}, which it is inside of, has ended"
    asker = None if row["asker_id"] is None else await tx.get(JOB, row["asker_id"], row["tenant_id"])
    if asker is not None and asker["state"] == JOB.move("cancel").target.name:
        return f"{public_id(JOB.name, asker['id'])}, which waited for it, was cancelled"
    return None


async def _wake_forgotten(store: Store, tenant_id: int) -> int:
    forgotten = await store.forgotten_askers(tenant_id, MOST_AT_ONCE)
    ended = [found[1] for _, waits_for in forgotten if (found := ids.key_of(waits_for.removeprefix(A_CREW)))]
    return await store.wake_for_crews([job for job, _ in forgotten], ended) if ended else 0


async def _allocate(tx: Transaction, tenant_id: int) -> int:
    await tx.lock_trees([lock_of(tenant_id)])
    return await allocate(tx, tenant_id)

"""The lifecycle of a remote worker, as it reports it: running, and ended."""

from __future__ import annotations

from keptwork.core.lifecycles import WORKER, Verb, decide, insist
from keptwork.core.lifecycles.worker import IDLE, RUNNING
from keptwork.errors import LeaseLost
from keptwork.store import Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.counters_decisions import decided
from keptwork.workers.commands import Row, find
from keptwork.workers.registration_orders import DRAINED

LONGEST_REASON = 500
TRIES = 5


@acknowledged
async def enrol(store: Store, tenant_id: int, id: str, actor: str | None = None) -> Row:
    """Move a registered worker to running. A running worker does not change."""
    for _ in range(TRIES):
        row = await find(store, tenant_id, id)
        if row["state"] == RUNNING.name:
            return row
        if not await store.apply([decided(store, WORKER, row, "start_task", actor=actor)]):
            return await find(store, tenant_id, id)
    raise LeaseLost(lifecycle=WORKER.name, id=id, trigger="start_task")


@acknowledged
async def end(store: Store, tenant_id: int, id: str, reason: str | None = None, error: str | None = None) -> Row:
    """End a worker as it requests: it has drained, or has met a permanent error.

    A worker that is not running is terminated. A worker that has ended does not change.
    """
    why = (error or reason or DRAINED)[:LONGEST_REASON]
    for _ in range(TRIES):
        row = await find(store, tenant_id, id)
        if WORKER.state(row["state"]).final:
            return row
        at_work = Verb.SUCCEED if error is None else Verb.FAIL
        verb = at_work if row["state"] == RUNNING.name else Verb.TERMINATE
        if not await store.apply([insist(decide(WORKER, row, verb, actor=f"w:{row['id']}", reason=why))]):
            return await find(store, tenant_id, id)
    raise LeaseLost(lifecycle=WORKER.name, id=id, trigger="end")


def may_claim(state: str) -> bool:
    """Return whether a worker in this state can claim jobs."""
    return state in (IDLE.name, RUNNING.name)

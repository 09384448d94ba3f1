"""The life of a worker that works for a server over the network, as it tells it itself: at work, and ended."""

from __future__ import annotations

from keptwork.errors import LeaseLost
from keptwork.lifecycle import WORKER, Verb, decide, insist
from keptwork.lifecycle.worker import IDLE, RUNNING
from keptwork.service.acknowledged import acknowledged
from keptwork.service.decisions import decided
from keptwork.service.orders import DRAINED
from keptwork.service.workers import Row, find
from keptwork.store import Store

LONGEST_REASON = 500
TRIES = 5


@acknowledged
async def start(store: Store, tenant_id: int, id: str, actor: str | None = None) -> Row:
    """Its registration is over and it is at work; one that is already stays so."""
    for _ in range(TRIES):
        row = await find(store, tenant_id, id)
        if row["state"] == RUNNING.name:
            return row
        if not await store.apply([decided(store, WORKER, row, "start_task", actor=actor)]):
            return await find(store, tenant_id, id)
    raise LeaseLost(lifecycle=WORKER.name, id=id, trigger="start_task")


@acknowledged
async def end(store: Store, tenant_id: int, id: str, reason: str | None = None, error: str | None = None) -> Row:
    """As the worker itself wants it: it has drained, or met an error it cannot recover from. One that is not at work is
    terminated. One that has ended stays as it is."""
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
    """Whether a worker in this state is given jobs."""
    return state in (IDLE.name, RUNNING.name)

"""Queues: list, pause, and resume them."""

from __future__ import annotations

from typing import Any

from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from keptwork.store import QueueSummary, Store
from keptwork.store.contract.jobs_list import LEASED


async def list_queues(store: Store, tenant_id: int) -> list[QueueSummary]:
    """List every queue that has jobs or was ever paused."""
    return await store.queues(tenant_id)


async def pause(store: Store, tenant_id: int, name: str) -> QueueSummary:
    """Pause a queue from the next claim on, and return it as it was before. Running jobs continue."""
    return await _set_paused(store, tenant_id, name, True)


async def resume(store: Store, tenant_id: int, name: str) -> QueueSummary:
    """Resume a queue from the next claim on, and return it as it was before."""
    return await _set_paused(store, tenant_id, name, False)


async def _set_paused(store: Store, tenant_id: int, name: str, paused: bool) -> QueueSummary:
    if not name.strip() or not name.isprintable():
        raise BadInput(what=f"{name!r} is no queue; list them with: keptwork queues list")
    before = {queue.name: queue for queue in await store.queues(tenant_id)}
    await store.set_queue_paused(name, paused, tenant_id)
    return before.get(name, QueueSummary(name, {}, None, None))


def queued(queue: QueueSummary) -> int:
    """Return the number of queued jobs, for any reason."""
    return queue.jobs.get(JOB.initial.name, 0)


def at_work(queue: QueueSummary) -> int:
    """Return the number of jobs that workers hold."""
    return sum(queue.jobs.get(state, 0) for state in LEASED)


def queue_json(queue: QueueSummary) -> dict[str, Any]:
    """Return a queue with a count for every state."""
    return {
        "name": queue.name,
        "jobs": {state.name: queue.jobs.get(state.name, 0) for state in JOB.states},
        "oldest_due_at": None if queue.oldest_due is None else rfc3339(queue.oldest_due),
        "paused_at": None if queue.paused_at is None else rfc3339(queue.paused_at),
    }

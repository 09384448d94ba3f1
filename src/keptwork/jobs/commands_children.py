"""List the children of a job, and cancel them with it."""

from __future__ import annotations

from typing import Any

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, Change, decide
from keptwork.core.lifecycles.job import RUNNING
from keptwork.jobs import complete
from keptwork.store import Store
from keptwork.store.contract.jobs_spawned import keys_of

AT_ONCE = 500
BECAUSE, ASKED = "its parent was cancelled", "it was asked to stop"
SPAWN = "#spawn"
"""Prefix of the names of checkpoints that store the IDs of children."""

# _DECIDED_ON: columns that decisions need. _SHOWN: columns that the list of children shows.
_DECIDED_ON = ("id", "tenant_id", "state", "seq", "epoch", "owner", "lease_until", *JOB.linked, "cancel_requested_at")
_SHOWN = ("id", "kind", "state", "reason", "error", "created_at", "completed_at", "waits_for")

Row = dict[str, Any]


async def listed(store: Store, tenant_id: int, job: int) -> list[Row]:
    """List the children of a job in the order of their creation, with a few columns of each."""
    spawned = [one for one in await store.checkpoints(tenant_id, job) if one.name.startswith(SPAWN)]
    keys = [key for one in spawned for key in keys_of(one.result)]
    found: dict[int, Row] = {}
    for first in range(0, len(keys), AT_ONCE):
        rows = await store.rows(JOB, keys[first : first + AT_ONCE], _SHOWN)
        found |= {row["id"]: row for row in rows}
    return [found[key] for key in keys if key in found]


async def cancel_stopped(store: Store, tenant_id: int, job: int) -> int:
    """Cancel a waiting job that has a cancellation request, with its children. Return how many have ended."""
    ended = await _cancel_some(store, [job], False, None, ASKED)
    return len(ended) + sum([await cancel_children(store, tenant_id, one) for one in ended])


async def cancel_children(store: Store, tenant_id: int, parent: int, *, hard: bool = False) -> int:
    """Cancel the children of a cancelled job, and their children, to any depth.

    Return how many have ended. Running jobs receive a cancellation request, unless `hard` is set. Their own children
    follow when they have ended.
    """
    total, cancelled = 0, [parent]
    while cancelled:
        cause = public_id(JOB.name, cancelled[0]) if len(cancelled) == 1 else public_id(JOB.name, parent)
        keys = await store.unfinished_children(tenant_id, cancelled)
        cancelled = []
        for first in range(0, len(keys), AT_ONCE):
            cancelled += await _cancel_some(store, keys[first : first + AT_ONCE], hard, cause)
        total += len(cancelled)
    return total


async def _cancel_some(
    store: Store, keys: list[int], hard: bool, cause: str | None, reason: str = BECAUSE
) -> list[int]:
    rows = await store.rows(JOB, keys, _DECIDED_ON)
    ending = [row for row in rows if hard or row["state"] != RUNNING.name]
    for row in rows:
        if row not in ending and row["cancel_requested_at"] is None:
            await store.request_stop(row["id"], row["tenant_id"])
    decisions = [decide(JOB, row, "cancel", reason=reason, cause=cause) for row in ending]
    changes = [change for change in decisions if isinstance(change, Change)]  # the other jobs have finished meanwhile
    late = {change.id for change in await complete.applied(store, changes)}
    return [change.id for change in changes if change.id not in late]

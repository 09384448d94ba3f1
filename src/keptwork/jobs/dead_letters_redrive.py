"""Rerun jobs: create a new job with the same work, linked to the old one.

The first rerun has an idempotency key with the old job's ID, so that concurrent requests create one job. Further reruns
need `again`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, RUN_STEP
from keptwork.core.validation import OWN_KINDS
from keptwork.errors import BadInput, BelongsToStep, RunAgainBefore
from keptwork.store import JobFilter, NewJob, Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.records import HELD_BY_LIMIT

COPIED = ("kind", "payload", "queue", "tenant_id", "priority", "max_attempts", "on_exhausted", "hold_key", "limit_key")
TRACED = ("correlation_id", "trace_id")
COLUMNS = ("id", "step_id", *COPIED, *TRACED)
CAUSE = "redrive"


@acknowledged
async def run_again(
    store: Store, row: dict[str, Any], *, payload: str | None = None, again: bool = False, actor: str | None = None
) -> int:
    """Rerun a job, with another payload if one is given. A second rerun is rejected unless `again` is set."""
    if not again:
        wanted = JobFilter(row["tenant_id"], redriven_from=(row["id"],))
        for later in await store.jobs(wanted, limit=1, columns=("id",)):
            raise RunAgainBefore(id=public_id(JOB.name, row["id"]), later=public_id(JOB.name, later["id"]))
    if payload is not None and row["kind"].startswith(OWN_KINDS):
        raise BadInput(what=f"{public_id(JOB.name, row['id'])} is a {row['kind']}: it is run again as it was, or not")
    edited = row if payload is None else {**row, "payload": payload}
    return (await run_all_again(store, [edited], again=again, actor=actor))[0]


async def run_all_again(
    store: Store, rows: Sequence[dict[str, Any]], *, again: bool = False, actor: str | None = None
) -> list[int]:
    """Create a new job for each of these, all or none, and return their keys.

    If a concurrent request reruns the same job, both return the same new job. A step's job is rejected, because it
    reruns with its step.
    """
    for row in rows:
        if row["step_id"] is not None:
            step = public_id(RUN_STEP.name, row["step_id"])
            raise BelongsToStep(id=public_id(JOB.name, row["id"]), step=step)
    return await store.enqueue([_copy(row, again, actor) for row in rows])


def _copy(row: dict[str, Any], again: bool, actor: str | None) -> NewJob:
    return NewJob(
        **{name: row[name] for name in (*COPIED, *TRACED)},
        key=None if again else f"{CAUSE}:{public_id(JOB.name, row['id'])}",
        held_by=None if row["limit_key"] is None else HELD_BY_LIMIT,
        actor=actor,
        cause=CAUSE,
        redriven_from=row["id"],
    )

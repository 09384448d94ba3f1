"""Progress of a job: the checkpoints of its steps, and the last report of its handler."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import JOB
from keptwork.store import Job, Store
from keptwork.store.contract.checkpoints import PROGRESS, Checkpoint

OVERRUN = "job_overrun"
OVERRUN_TTL_US = 7 * 86_400_000_000


class Said(NamedTuple):
    """A handler's progress report and its time."""

    fraction: float
    text: str
    at: int


async def said(store: Store, tenant_id: int, job: int) -> Said | None:
    """Return the last progress report of a job's handler.

    Return None if there is none or it has expired.
    """
    seen = [one for one in await store.telemetry(JOB, job, tenant_id) if one.kind == PROGRESS]
    if not seen:
        return None
    told = json.loads(seen[0].payload)
    return Said(float(told["fraction"]), str(told["text"]), seen[0].ts)


async def keep_overrun(store: Store, job: Job, text: str) -> None:
    """Store that a handler returned after its timeout, and by how much."""
    payload = json.dumps({"says": text})
    await store.record_telemetry(JOB, job.id, OVERRUN, payload, ttl_us=OVERRUN_TTL_US, tenant_id=job.tenant_id)


async def overrun(store: Store, tenant_id: int, job: int) -> str | None:
    """Return the latest note that a handler of this job returned after its timeout, or None."""
    seen = [one for one in await store.telemetry(JOB, job, tenant_id) if one.kind == OVERRUN]
    return str(json.loads(seen[0].payload)["says"]) if seen else None


def size(one: Checkpoint) -> int:
    """Return the size in bytes of a step's result, wherever it is stored."""
    return len(one.result.encode()) if one.hash is None else int(json.loads(one.result)["size"])


def said_as_json(told: Said | None) -> dict[str, Any] | None:
    return told and {**told._asdict(), "at": rfc3339(told.at)}


def step_json(one: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint in its public form."""
    return {
        "name": one.name,
        "at": rfc3339(one.created_at),
        "size": size(one),
        "hash": one.hash,
        "epoch": one.epoch,
        "version": one.version,
        "code_changed_at": one.changed_at and rfc3339(one.changed_at),
    }

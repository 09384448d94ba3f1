"""Jobs as a worker claims them, with the checkpoints of earlier attempts and the function to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from keptwork.jobs import queries as service
from keptwork.store.contract.checkpoints import Checkpoint
from keptwork.workers.remote.claims import Given
from keptwork.workers.step_runner import delay_us_of, seconds_of

LARGEST_GIVEN = 256 << 10
"""Total size of the checkpoints that a claim includes. The worker fetches the others one by one."""

Lease = Annotated[float, Field(ge=1, le=3600, description="Duration of the lease in seconds. Renew it in time.")]


class GivenCheckpoint(BaseModel):
    """A checkpoint of an earlier attempt. Fetch a `large` one with GET /api/jobs/{id}/checkpoints/{name}."""

    name: str
    value: Any
    large: bool
    epoch: int
    version: int
    code: str | None
    changed: bool


class GivenStep(BaseModel):
    """The step of a flow that a job runs: the function to call, and its arguments."""

    flow: str
    name: str
    call: str
    arguments: dict[str, Any]
    timeout: float | None
    retry_in: float | None


class GivenJob(BaseModel):
    """A job to run."""

    id: str
    epoch: int
    state: str
    kind: str
    queue: str
    priority: int
    payload: Any
    attempt: int
    max_attempts: int
    on_exhausted: str
    lease_until: str | None
    run_at: str
    correlation_id: str | None
    trace_id: str | None
    checkpoints: list[GivenCheckpoint]
    step: GivenStep | None


def given(one: Given) -> dict[str, Any]:
    """Return a job as a claim returns it."""
    job = one.job
    shown = service.as_json({name: job[name] for name in ("id", "state", "payload", "run_at", "lease_until")})
    plain = (
        "epoch",
        "state",
        "kind",
        "queue",
        "priority",
        "max_attempts",
        "on_exhausted",
        "correlation_id",
        "trace_id",
    )
    return {
        **{name: shown[name] for name in ("id", "payload", "run_at", "lease_until")},
        **{name: job[name] for name in plain},
        "attempt": job.attempts,
        "checkpoints": _checkpoints(one.checkpoints),
        "step": _step(one),
    }


def _checkpoints(kept: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    told, size = [], 0
    for one in kept:
        size += len(one.result)
        large = one.hash is not None or size > LARGEST_GIVEN
        plain = {name: getattr(one, name) for name in ("name", "epoch", "version", "code")}
        value = None if large else service.document(one.result)
        told.append({**plain, "value": value, "large": large, "changed": one.changed_at is not None})
    return told


def _step(one: Given) -> dict[str, Any] | None:
    task = one.task
    if task is None:
        return None
    delay_us, wait = delay_us_of(task, one.job.attempts), seconds_of(task)
    return {
        "flow": task.flow,
        "name": task.name,
        "call": task.step.call or "",
        "arguments": dict(task.step.with_),
        "timeout": wait,
        "retry_in": None if delay_us is None else delay_us / 1_000_000,
    }


def us(seconds: float) -> int:
    """Return seconds as microseconds."""
    return round(seconds * 1_000_000)

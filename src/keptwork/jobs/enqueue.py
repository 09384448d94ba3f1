"""Create jobs from declared kinds and arguments, and enqueue them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keptwork.job import JobType
from keptwork.observability import spans
from keptwork.store import NewJob
from keptwork.store.contract.records import HELD_BY_LIMIT
from keptwork.store.contract.store import Enqueues


def new_job(kind: JobType, arguments: Mapping[str, Any], tenant_id: int) -> NewJob:
    """Return a job of this kind. Raise an error for arguments that its function does not accept."""
    return NewJob(
        kind.name,
        kind.payload(arguments),
        kind.queue,
        tenant_id,
        kind.priority,
        max_attempts=kind.max_attempts,
        on_exhausted=kind.on_exhausted,
        hold_key=kind.hold_key,
        limit_key=None if kind.throttle is None else kind.throttle.key(kind.name, arguments),
        held_by=None if kind.throttle is None else HELD_BY_LIMIT,
    )


def new_jobs(kind: JobType, many: Iterable[Mapping[str, Any]], tenant_id: int) -> list[NewJob]:
    """Return a job for each set of arguments. Without a limit, the jobs differ only in their payloads."""
    if kind.throttle is not None:
        return [new_job(kind, arguments, tenant_id) for arguments in many]
    alike = NewJob(
        kind.name,
        "",
        kind.queue,
        tenant_id,
        kind.priority,
        max_attempts=kind.max_attempts,
        on_exhausted=kind.on_exhausted,
        hold_key=kind.hold_key,
    )
    made, name, rest, payload = NewJob._make, alike.kind, alike[2:], kind.payload
    return [made((name, payload(arguments), *rest)) for arguments in many]


async def put(queue: Enqueues, jobs: Sequence[NewJob]) -> list[int]:
    """Enqueue jobs, all or none, and return their keys. Tracing puts the jobs' runs below one span."""
    if spans.tracer is None or not jobs:
        return await queue.enqueue(spans.inherited(jobs))
    with spans.enqueuing(jobs) as enqueuing:
        keys = await queue.enqueue(enqueuing.jobs)
        enqueuing.made(keys)
    return keys

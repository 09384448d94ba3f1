"""From a declared kind of job and its arguments to what is put into the queue, and putting it there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keptwork import spans
from keptwork.job_type import JobType
from keptwork.store import NewJob
from keptwork.store.protocol import Enqueues
from keptwork.store.records import HELD_BY_LIMIT


def new_job(kind: JobType, arguments: Mapping[str, Any], tenant_id: int) -> NewJob:
    """A job of this kind, ready to be enqueued; arguments its function would not take are refused."""
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
    """The same for many sets of arguments. Where no limit looks at them, the jobs differ in nothing but the payload."""
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
    """Enqueues them, all or none, and returns their keys. Where somebody traces, that is a span, and the runs of these
    jobs are below it."""
    if spans.tracer is None or not jobs:
        return await queue.enqueue(spans.inherited(jobs))
    with spans.enqueuing(jobs) as enqueuing:
        keys = await queue.enqueue(enqueuing.jobs)
        enqueuing.made(keys)
    return keys

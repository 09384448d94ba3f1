"""Unique windows and debouncing, where several calls create one job."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keptwork.core.durations import Span, span_us
from keptwork.errors import BadInput
from keptwork.observability import spans
from keptwork.store import NewJob

USUAL_MOST = 10


@dataclass(frozen=True, slots=True)
class Window:
    """Which calls create one job together, and for how long.

    A unique job can be created again after `length_us`. A debounced job runs `length_us` after the last call, at the
    latest `most_us` after the first.
    """

    key: str
    length_us: int
    most_us: int | None = None

    @classmethod
    def of(
        cls,
        job: NewJob,
        unique: Span | None,
        debounce: Span | None = None,
        most: Span | None = None,
        *,
        declared_us: int | None = None,
    ) -> Window | None:
        """Return the requested window, or None for a plain job.

        `declared_us` is the window of every job of the kind.
        """
        if debounce is not None:
            _refuse_beside_debounce(job, unique, declared_us)
            length = _span(debounce)
            key = f"debounce:{job.kind}:{job.key or ''}"
            return cls(key, length, USUAL_MOST * length if most is None else _span(most))
        if most is not None:
            raise BadInput(what="_debounce_most says how long a debounce may last; say _debounce= too")
        unique_us = declared_us if unique is None else _span(unique)
        if unique_us is None:
            return None
        return cls(f"unique:{job.kind}:{job.key or hashlib.sha256(job.payload.encode()).hexdigest()}", unique_us)

    async def enqueue(self, queue: Any, job: NewJob) -> int:
        """Enqueue the job and return its key, or the key of the job that covers this call. Its idempotency key applies
        only within the window."""
        if not hasattr(queue, "enqueue_unique"):
            raise BadInput(
                what=f"job {job.kind}: _unique, _debounce and a declared unique= need a transaction of "
                f"app.transaction() as _tx, or none."
            )
        new = job._replace(key=None)
        if self.most_us is None:
            return int(await queue.enqueue_unique(new, self.key, self.length_us))
        return int(await queue.enqueue_debounced(new, self.key, self.length_us, self.most_us))


def _refuse_beside_debounce(job: NewJob, unique: Span | None, declared_us: int | None) -> None:
    """Refuse options that set the time or the number of the jobs in another way."""
    if job.delay_us:
        raise BadInput(what="_run_in cannot be combined with _debounce, which sets the delay. Leave one of them out.")
    if unique is not None:
        raise BadInput(what="_unique cannot be combined with _debounce. Leave one of them out.")
    if declared_us is not None:
        raise BadInput(what=f"_debounce cannot be used with job {job.kind}, which is declared with unique=.")


def _span(span: Span) -> int:
    if not (length := span_us(span)):
        raise BadInput(what=f"{span!r} is no window; it must be longer than that")
    return length


async def put_unique(queue: Any, jobs: Sequence[NewJob], length_us: int) -> list[int]:
    """Enqueue several jobs of a kind that is declared unique, all or none."""
    carried = [job._replace(trace_id=spans.carried(job.trace_id)) for job in jobs]
    windows = [(job, window) for job in carried if (window := Window.of(job, None, declared_us=length_us))]

    async def within(transaction: Any) -> list[int]:
        return [await window.enqueue(transaction, job) for job, window in windows]

    if not jobs:
        return []
    if not hasattr(queue, "atomically"):
        return await within(queue)
    made: list[int] = await queue.atomically(within, weight=len(jobs))
    return made

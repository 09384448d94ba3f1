"""Unique windows and debounce: when several calls are to make one job."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from keptwork.errors import BadInput
from keptwork.moments import Span, span_us
from keptwork.store import NewJob

USUAL_MOST = 10


@dataclass(frozen=True, slots=True)
class Window:
    """Which calls belong together, and for how long: until a unique job may be made again, or until the last call is so
    long ago that the job runs, at the latest `most_us` after the first."""

    key: str
    length_us: int
    most_us: int | None = None

    @classmethod
    def of(cls, job: NewJob, unique: Span | None, debounce: Span | None, most: Span | None) -> Window | None:
        """What was asked for; none for a plain job."""
        if debounce is not None:
            length = _span(debounce)
            key = f"debounce:{job.kind}:{job.key or ''}"
            return cls(key, length, USUAL_MOST * length if most is None else _span(most))
        if most is not None:
            raise BadInput(what="_debounce_most says how long a debounce may last; say _debounce= too")
        if unique is None:
            return None
        return cls(f"unique:{job.kind}:{job.key or hashlib.sha256(job.payload.encode()).hexdigest()}", _span(unique))

    async def enqueue(self, queue: Any, job: NewJob) -> int:
        """The job that this call makes or falls to. Its key is that of the window, not one for ever."""
        if not hasattr(queue, "enqueue_unique"):
            raise BadInput(what="a unique window or debounce needs a transaction of app.transaction() as _tx, or none")
        new = job._replace(key=None)
        if self.most_us is None:
            return int(await queue.enqueue_unique(new, self.key, self.length_us))
        return int(await queue.enqueue_debounced(new, self.key, self.length_us, self.most_us))


def _span(span: Span) -> int:
    if not (length := span_us(span)):
        raise BadInput(what=f"{span!r} is no window; it must be longer than that")
    return length

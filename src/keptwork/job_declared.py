"""A kind of job as an application declares it, and the method that enqueues its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keptwork.core.durations import Span, span_us
from keptwork.core.validation import check_name, check_priority
from keptwork.handles import Handle
from keptwork.job import JobType
from keptwork.jobs.enqueue_window import Window
from keptwork.observability import spans, spans_trace_context

if TYPE_CHECKING:
    from keptwork.app import Keptwork


_NOTHING = (None, None, None, None)


class DeclaredJob:
    """A kind of job, as `@app.job` returns it. Enqueue a job, or call the function directly."""

    def __init__(self, app: Keptwork, kind: JobType) -> None:
        self.kind = kind
        self.__wrapped__ = kind.function
        self._app = app

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.function(*args, **kwargs)

    def in_database(self, url: str) -> None:
        """Make the application use this database, in a process that has not opened a database."""
        self._app.url = url

    async def enqueue(
        self,
        *,
        _key: str | None = None,
        _run_in: Span = 0,
        _priority: int | None = None,
        _queue: str | None = None,
        _correlation_id: str | None = None,
        _trace_id: str | None = None,
        _unique: Span | None = None,
        _debounce: Span | None = None,
        _debounce_most: Span | None = None,
        _tx: Any = None,
        **arguments: Any,
    ) -> Handle:
        """Enqueue one job.

        With `_tx`, the job is enqueued when that transaction commits. Pass a transaction of `app.transaction()` or, on
        PostgreSQL, your own asyncpg connection.

        `_key` is an idempotency key: a repeated key returns the handle of the existing job. With `_unique="10m"`, the
        key applies for 10 minutes after the first call, with any outcome of the job. Without a key, `_unique`
        compares the arguments. With `_debounce="5s"`, one job runs 5 s after the last call, with the arguments of that
        call, and at the latest `_debounce_most` after the first call (default: 10 times `_debounce`). Without a key,
        that covers all jobs of the kind.

        `_debounce` excludes `_run_in`, `_unique`, and a kind that is declared with `unique=`.

        `_trace_id` names the trace of the job. If it is a `traceparent` header, the spans of the job continue that
        trace.
        """
        if _priority is not None:
            check_priority(_priority)
        said = (_key, _queue, _correlation_id, _trace_id)
        for what, text in () if said == _NOTHING else zip(("key", "queue", "correlation", "trace"), said, strict=True):
            if text is not None:
                check_name(what, text)
        await self._app.open()
        new = self._app.new_job(self.kind, arguments)
        if said != _NOTHING or _priority is not None or _run_in != 0:
            new = new._replace(
                key=_key,
                delay_us=span_us(_run_in),
                correlation_id=_correlation_id,
                trace_id=spans_trace_context.said(_trace_id),
                priority=new.priority if _priority is None else _priority,
                queue=new.queue if _queue is None else _queue,
            )
        await self._app.declare_limit(self.kind, _tx)
        window = Window.of(new, _unique, _debounce, _debounce_most, declared_us=self.kind.unique_us)
        if window is not None:
            new = new._replace(trace_id=spans.carried(new.trace_id))
            return Handle(await window.enqueue(await self._app.queue(_tx), new), self._app)
        return Handle(await self._app.put(new, _tx), self._app)

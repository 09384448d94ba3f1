"""Wait for the end of a job by following its events."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from keptwork.client import models
from keptwork.client.api.jobs import AsyncJobs, Jobs
from keptwork.client.wire import Wire, segment
from keptwork.core.durations import Span, span_us
from keptwork.core.lifecycles import JOB
from keptwork.errors import StillUnfinished

_FINAL = frozenset(state.name for state in JOB.states if state.final)


async def ended(wire: Wire, id: str, at_most: Span | None) -> models.WholeJob:
    """Return a job when it has finished, with any outcome. Raise `StillUnfinished` on timeout."""
    address = f"/api/jobs/{segment(id)}"
    job = await wire.get(models.WholeJob, address)
    try:
        async with asyncio.timeout(None if at_most is None else span_us(at_most) / 1_000_000):
            while job["state"] not in _FINAL:
                await _last_move(wire, job)
                job = await wire.get(models.WholeJob, address)
    except TimeoutError:
        raise StillUnfinished(id=job["id"], state=job["state"], waited=at_most) from None
    return job


async def _last_move(wire: Wire, job: models.WholeJob) -> None:
    """Wait for the final event of a job.

    Follow from its last known event, because the final one can occur before the stream is open.
    """
    known = job["events"][-1]["cursor"] if job["events"] else None
    query = {"entity": JOB.name, "id": job["id"]}
    async with aclosing(wire.follow(models.Moved, "/api/events/stream", query, after=known)) as moves:
        async for move in moves:
            if move["to_state"] in _FINAL:
                return


class AsyncEndingJobs(AsyncJobs):
    """Jobs, with a method that waits for their end."""

    async def wait(self, id: str, timeout: Span | None = None) -> models.WholeJob:  # noqa: ASYNC109 - its error has more details
        """Return a job when it has finished, with any outcome: see its `state`, `result`, and `error`.

        Raise `StillUnfinished` on timeout.
        """
        return await ended(self._wire, id, timeout)


class EndingJobs(Jobs):
    """Jobs, with a method that waits for their end."""

    def wait(self, id: str, timeout: Span | None = None) -> models.WholeJob:
        """Return a job when it has finished, with any outcome: see its `state`, `result`, and `error`.

        Raise `StillUnfinished` on timeout.
        """
        return self._wire.run(lambda wire: ended(wire, id, timeout))

"""Waiting for the end of a job, by its events."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from keptwork.client import models
from keptwork.client.api.jobs import AsyncJobs, Jobs
from keptwork.client.wire import Wire, segment
from keptwork.errors import StillUnfinished
from keptwork.lifecycle import JOB
from keptwork.moments import Span, span_us

_FINAL = frozenset(state.name for state in JOB.states if state.final)


async def ended(wire: Wire, id: str, at_most: Span | None) -> models.WholeJob:
    """A job once it has ended, however that is; one that has not when the time is over is `StillUnfinished`."""
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
    """From what is known of it already: its last event may come at any moment, also before anybody listens."""
    known = job["events"][-1]["cursor"] if job["events"] else None
    query = {"entity": JOB.name, "id": job["id"]}
    async with aclosing(wire.follow(models.Moved, "/api/events/stream", query, after=known)) as moves:
        async for move in moves:
            if move["to_state"] in _FINAL:
                return


class AsyncEndingJobs(AsyncJobs):
    """Jobs, and their ends."""

    async def wait(self, id: str, timeout: Span | None = None) -> models.WholeJob:  # noqa: ASYNC109 - it tells more
        """A job once it has ended, well or not: look at its `state`, `result` and `error`. One that has not when the
        time is over is `StillUnfinished`."""
        return await ended(self._wire, id, timeout)


class EndingJobs(Jobs):
    """Jobs, and their ends."""

    def wait(self, id: str, timeout: Span | None = None) -> models.WholeJob:
        """A job once it has ended, well or not: look at its `state`, `result` and `error`. One that has not when the
        time is over is `StillUnfinished`."""
        return self._wire.run(lambda wire: ended(wire, id, timeout))

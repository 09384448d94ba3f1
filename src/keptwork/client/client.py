"""The client of one server, with one key."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

from keptwork.client import models
from keptwork.client.api import Api, AsyncApi
from keptwork.client.api.jobs import AsyncJobs, Jobs
from keptwork.client.retry import Patience
from keptwork.client.sync_wire import SyncWire
from keptwork.client.wire import Wire, segment
from keptwork.core.durations import Span, span_us
from keptwork.core.lifecycles import JOB
from keptwork.core.secrets import Key
from keptwork.errors import StillUnfinished

# Wait for the end of a job by following its events.


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


class AsyncClient(AsyncApi):
    """A server's API with asynchronous methods.

    The server's URL is `server` or KEPTWORK_SERVER. The key is `key`, that of `key_file`, or KEPTWORK_KEY.

        async with AsyncClient("https://keptwork.example") as client:
            made = await client.jobs.enqueue(kind="fetch", payload={"url": "…"})
            job = await client.jobs.wait(made["job"]["id"], timeout="5m")
            async for event in client.events.follow(entity="job"):
                print(event["entity_id"], event["to_state"])
    """

    def __init__(
        self,
        server: str | None = None,
        key: str | Key | None = None,
        *,
        key_file: str | Path | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.wire = Wire(server, key, key_file=key_file, patience=patience)
        super().__init__(self.wire)
        self.jobs: AsyncEndingJobs = AsyncEndingJobs(self.wire)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.wire.server!r}, key hidden)"

    async def close(self) -> None:
        """Close all connections."""
        await self.wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.wire.__aexit__(kind, error, traceback)


class Client(Api):
    """A server's API with blocking methods, which any thread can call.

    with Client("https://keptwork.example", key_file="~/.keptwork-key") as client:
        for job in client.jobs.all(state=["failed"]):
            client.jobs.retry(job["id"])
    """

    def __init__(
        self,
        server: str | None = None,
        key: str | Key | None = None,
        *,
        key_file: str | Path | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.wire = SyncWire(lambda: Wire(server, key, key_file=key_file, patience=patience))
        super().__init__(self.wire)
        self.jobs: EndingJobs = EndingJobs(self.wire)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.wire.server!r}, key hidden)"

    def close(self) -> None:
        """Close all connections."""
        self.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

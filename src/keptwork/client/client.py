"""The client of one server, with one key."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from keptwork.client.api import Api, AsyncApi
from keptwork.client.client_waiting import AsyncEndingJobs, EndingJobs
from keptwork.client.retry import Patience
from keptwork.client.sync_wire import SyncWire
from keptwork.client.wire import Wire
from keptwork.core.secrets_key import Key


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

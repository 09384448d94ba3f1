"""The handle to a job that was enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keptwork import ids
from keptwork.lifecycle import JOB
from keptwork.moments import Span

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.store import Artifact


class Handle:
    """An enqueued job."""

    __slots__ = ("_app", "key")

    def __init__(self, key: int, app: Keptwork) -> None:
        self.key = key
        self._app = app

    @property
    def id(self) -> str:
        """Its public id."""
        return ids.public(JOB.prefix, self.key)

    async def result(self, timeout: Span | None = None) -> Any:  # noqa: ASYNC109 - a span, with an error that tells more
        """What its handler returned, once it has ended. A job that ended without success raises `JobFailed`, one that
        has not ended in time `StillUnfinished`."""
        return await self._app.result(self.id, timeout)

    async def artifacts(self) -> list[Artifact]:
        """What it keeps beside its result."""
        return await self._app.artifacts(self.id)

    async def artifact(self, name: str) -> bytes:
        """What is in one of its artifacts."""
        return await self._app.artifact(self.id, name)

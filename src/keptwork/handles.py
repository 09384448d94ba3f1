"""The handle of an enqueued job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keptwork.core import ids
from keptwork.core.durations import Span
from keptwork.core.lifecycles import JOB

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
        """The public ID."""
        return ids.public(JOB.prefix, self.key)

    async def result(self, timeout: Span | None = None) -> Any:  # noqa: ASYNC109 - a span, with an error that tells more
        """Wait until the job finishes and return its result.

        An unsuccessful job raises `JobFailed`. A job that has not finished after `timeout` raises `StillUnfinished`.
        """
        return await self._app.result(self.id, timeout)

    async def artifacts(self) -> list[Artifact]:
        """Return the job's artifacts."""
        return await self._app.artifacts(self.id)

    async def artifact(self, name: str) -> bytes:
        """Return the content of one of the job's artifacts."""
        return await self._app.artifact(self.id, name)

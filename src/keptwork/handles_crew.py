"""The handle of a submitted crew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keptwork.core import ids
from keptwork.core.durations import Span
from keptwork.core.lifecycles import CREW
from keptwork.crews import commands as crews

if TYPE_CHECKING:
    from keptwork.app import Keptwork


class CrewHandle:
    """A submitted crew."""

    __slots__ = ("_app", "key")

    def __init__(self, key: int, app: Keptwork) -> None:
        self.key = key
        self._app = app

    @property
    def id(self) -> str:
        """The public ID."""
        return ids.public(CREW.prefix, self.key)

    async def result(self, timeout: Span | None = None) -> list[Any]:  # noqa: ASYNC109 - as Handle.result has it
        """Wait until the crew finishes and return the results of its shares, in order.

        An unsuccessful crew raises `CrewFailed`. A crew that has not finished after `timeout` raises `CrewUnfinished`.
        """
        return await crews.result(await self._app.open(), self._app.tenant_id, self.id, timeout)

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the crew, its nested crews, and all their jobs."""
        await crews.cancel(await self._app.open(), self._app.tenant_id, self.id, reason=reason)

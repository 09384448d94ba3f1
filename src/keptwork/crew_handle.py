"""The handle to a crew that was submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keptwork import ids
from keptwork.lifecycle import CREW
from keptwork.moments import Span
from keptwork.service import crews

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
        """Its public id."""
        return ids.public(CREW.prefix, self.key)

    async def result(self, timeout: Span | None = None) -> list[Any]:  # noqa: ASYNC109 - as Handle.result has it
        """What its shares returned, in their order, once it has ended. One that ended without success raises
        `CrewFailed`, one that has not ended in time `CrewUnfinished`."""
        return await crews.result(await self._app.open(), self._app.tenant_id, self.id, timeout)

    async def cancel(self, reason: str | None = None) -> None:
        """Ends it, with the crews inside it and all their jobs."""
        await crews.cancel(await self._app.open(), self._app.tenant_id, self.id, reason=reason)

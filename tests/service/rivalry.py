"""A store whose jobs move behind the reader's back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from keptwork.store import Store


class Rivalry:
    """A real store on which a rival makes a move right after each of the first reads."""

    def __init__(self, store: Store, *moves: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._moves = list(moves)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, *wanted: Any) -> dict[str, Any] | None:
        row = await self._store.get(*wanted)
        if self._moves:
            await self._moves.pop(0)()
        return row

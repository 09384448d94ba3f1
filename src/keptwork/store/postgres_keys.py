"""Keys for new rows, made before the rows are sent: so a call repeated after a lost answer makes no second row."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from keptwork import ids

PAGE_SIZE = 64
# A page number comes round again after 4 million keys; by then nobody may still be using it.
PAGE_LIFE_SECONDS = 10.0

Reserve = Callable[[int], Awaitable[list[int]]]


class KeyPages:
    """Gives out keys from pages reserved in the database, over the connection of whoever needs them.

    (A transaction that waited for a second connection to get its keys would wait for ever once every connection of the
    pool is lent to one like it.)
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._since = 0.0

    async def take(self, count: int, reserve: Reserve) -> list[int]:
        """That many keys, in growing order, telling the time they were taken."""
        offsets = await self._take_offsets(count, reserve)
        first = ids.first_key_of(time.time_ns() // 1_000_000)
        return sorted(first + offset for offset in offsets)

    async def _take_offsets(self, count: int, reserve: Reserve) -> list[int]:
        if time.monotonic() - self._since > PAGE_LIFE_SECONDS:
            self._offsets = []
        while (missing := count - len(self._offsets)) > 0:  # another caller may take some while we wait for more
            pages = await reserve(-(-missing // PAGE_SIZE))
            self._since = time.monotonic()
            self._offsets += [page * PAGE_SIZE + place for page in pages for place in range(PAGE_SIZE)]
        taken, self._offsets = self._offsets[:count], self._offsets[count:]
        return taken

"""Creates IDs for new rows before the rows are sent, so that a call repeated after a lost response creates no second
row."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from keptwork.core import ids

PAGE_SIZE = 64
# A page number repeats after 4 million IDs. Nothing must use its IDs by then.
PAGE_LIFE_SECONDS = 10.0

Reserve = Callable[[int], Awaitable[list[int]]]


class KeyPages:
    """Gives out IDs from pages reserved in the database, over the caller's own connection.

    If a transaction waited for a second connection to get its IDs, it would wait forever once every connection of the
    pool is lent to a transaction like it.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._since = 0.0

    def at_hand(self, count: int) -> list[int]:
        """Return this many keys in growing order, which tell the time they were taken, or [] if a page is needed."""
        if time.monotonic() - self._since > PAGE_LIFE_SECONDS:
            self._offsets = []
        if len(self._offsets) < count:
            return []
        taken = self._offsets[:count]
        del self._offsets[:count]
        first = ids.first_key_of(time.time_ns() // 1_000_000)
        return [first + offset for offset in sorted(taken)]

    async def take(self, count: int, reserve: Reserve) -> list[int]:
        """Return this many keys, and reserve pages for them over the connection of the caller."""
        while len(keys := self.at_hand(count)) < count:  # another caller may take some while we wait for more
            pages = await reserve(-(-(count - len(self._offsets)) // PAGE_SIZE))
            self._since = time.monotonic()
            self._offsets += [page * PAGE_SIZE + place for page in pages for place in range(PAGE_SIZE)]
        return keys

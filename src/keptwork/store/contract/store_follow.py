"""Follows the log: reads page after page, then waits for more events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from keptwork.store.contract.records import Event, EventFilter
from keptwork.store.contract.store import Reader

PAGE = 500
SHORTEST_WAIT = 0.005
LONGEST_WAIT = 0.1


async def following(reader: Reader, wanted: EventFilter, after: str | None) -> AsyncIterator[Event]:
    """Yield every event after the cursor, without end. Poll often while events arrive, and less often otherwise."""
    wait = SHORTEST_WAIT
    while True:
        page = await reader.events(wanted, after=after, limit=PAGE)
        for event in page:
            yield event
        if page:
            after, wait = page[-1].cursor, SHORTEST_WAIT
        else:
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

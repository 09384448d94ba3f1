"""Send events to many readers: one reader of the log serves all, so that 1,000 streams cost one.

A new reader first reads missed events from the log itself, while new events wait for it. It skips waiting events that
it has read already, by their position in the order of commits, which both follow. It therefore misses no event and
receives none twice. A reader that is too slow for its share of memory leaves the broadcast without losing an event: it
reads the log again from its position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from keptwork.errors import StoreError
from keptwork.store import Event, EventFilter, Store
from keptwork.store.contract.store_follow import PAGE

MOST_WAITING = 200
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 5.0

logger = logging.getLogger("keptwork.http")


class Listener:
    """The events that wait for one reader."""

    def __init__(self, wanted: EventFilter) -> None:
        self.wanted = wanted
        self.waiting: list[Event] = []
        self.overrun = False
        self.news = asyncio.Event()

    def hear(self, event: Event) -> None:
        """Add an event, if it matches the filter and there is room."""
        if not _matches(event, self.wanted):
            return
        if len(self.waiting) >= MOST_WAITING:
            self.overrun = True
        else:
            self.waiting.append(event)
        self.news.set()

    def take(self) -> list[Event]:
        """Return the waiting events in order, and remove them."""
        taken, self.waiting = self.waiting, []
        self.news.clear()
        return taken


class Audience:
    """Listeners by tenant, so that an event is not compared with listeners of other tenants."""

    def __init__(self) -> None:
        self._by_tenant: dict[int | None, set[Listener]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    def add(self, listener: Listener) -> None:
        self._by_tenant.setdefault(listener.wanted.tenant_id, set()).add(listener)

    def discard(self, listener: Listener) -> None:
        tenant_id = listener.wanted.tenant_id
        others = self._by_tenant.pop(tenant_id, set()) - {listener}
        if others:
            self._by_tenant[tenant_id] = others

    def tell(self, event: Event) -> None:
        for tenant_id in (event.tenant_id, None):
            for listener in self._by_tenant.get(tenant_id, ()):
                listener.hear(event)


class Broadcast:
    """One reader of the log, and its listeners."""

    def __init__(self, store: Store, of_tenant: Callable[[int], Store] | None = None) -> None:
        self._store = store
        self._of_tenant = of_tenant
        self.listeners = Audience()
        self._reader: asyncio.Task[None] | None = None

    async def follow(self, wanted: EventFilter, after: str) -> AsyncGenerator[Event, None]:
        """Yield every event after a cursor, without end."""
        while True:
            listener = Listener(wanted)
            try:
                await self._join(listener)
                async with aclosing(self._from(listener, after)) as events:
                    async for event in events:
                        after = event.cursor
                        yield event
            finally:
                self.listeners.discard(listener)

    async def _from(self, listener: Listener, after: str) -> AsyncGenerator[Event, None]:
        """Yield the log to its end, then the events since the listener joined, until it is overrun."""
        async for event in self._missed(listener.wanted, after):
            after = event.cursor
            yield event
        place = _place(after)
        while not listener.overrun:
            await listener.news.wait()
            for event in listener.take():
                if _place(event.cursor) > place:
                    place = _place(event.cursor)
                    yield event

    async def _missed(self, wanted: EventFilter, after: str) -> AsyncIterator[Event]:
        theirs = self._store
        if self._of_tenant is not None and wanted.tenant_id is not None:
            theirs = self._of_tenant(wanted.tenant_id)
        while page := await theirs.events(wanted, after=after, limit=PAGE):
            for event in page:
                yield event
            after = page[-1].cursor

    async def _join(self, listener: Listener) -> None:
        self.listeners.add(listener)
        if not self._reading():
            end = await self._store.log_end()
            if not self._reading():  # another listener has started the reader meanwhile
                self._reader = asyncio.create_task(self._read(end))

    def _reading(self) -> bool:
        return self._reader is not None and not self._reader.done()

    async def _read(self, after: str) -> None:
        """Read the log while there are listeners. If the database is unreachable, retry from the same position."""
        pause = SHORTEST_PAUSE
        while self.listeners:
            try:
                async for event in self._store.follow(EventFilter(), after=after):
                    after, pause = event.cursor, SHORTEST_PAUSE
                    self.listeners.tell(event)
                    if not self.listeners:
                        return
            except StoreError as error:
                logger.warning("streams wait for the log: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def close(self) -> None:
        """Stop reading the log."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])


def _place(cursor: str) -> tuple[int, ...]:
    return tuple(map(int, cursor.split("-")))


def _matches(event: Event, wanted: EventFilter) -> bool:
    return (
        wanted.tenant_id in (None, event.tenant_id)
        and wanted.entity in (None, event.entity)
        and wanted.entity_id in (None, event.entity_id)
        and wanted.type in (None, event.type)
        and wanted.correlation_id in (None, event.correlation_id)
        and (wanted.since is None or event.ts >= wanted.since)
        and (wanted.until is None or event.ts < wanted.until)
    )

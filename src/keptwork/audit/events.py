"""Read the event log: a page, a stream, and an event as JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from keptwork.core.durations import rfc3339
from keptwork.core.ids import actor_name, public_id
from keptwork.errors import BadInput
from keptwork.observability import spans
from keptwork.store.contract.operations_search import search
from keptwork.store.contract.records import Event, EventFilter
from keptwork.store.contract.store import Store

MOST_AT_ONCE = 10_000


class Page(NamedTuple):
    """A page of events, and the cursor of the next page if there are more."""

    events: list[Event]
    next: str | None


async def page(
    store: Store,
    wanted: EventFilter,
    *,
    after: str | None = None,
    limit: int = 100,
    newest_first: bool = False,
    text: str | None = None,
) -> Page:
    """Return one page of the log, from the start or after a cursor.

    With `text`, each call searches the next few thousand matching events for it: in their types, actors, reasons,
    correlations, and payloads.
    """
    if not 1 <= limit <= MOST_AT_ONCE:
        raise BadInput(what=f"a page holds 1 to {MOST_AT_ONCE} events, not {limit}")
    if text is not None:
        return await _searched(store, wanted, after, limit, newest_first, text)
    found = await store.events(wanted, after=after, limit=limit + 1, newest_first=newest_first)
    shown = found[:limit]
    return Page(shown, shown[-1].cursor if len(found) > limit else None)


async def _searched(
    store: Store, wanted: EventFilter, after: str | None, limit: int, newest_first: bool, text: str
) -> Page:
    async def read(place: str | None, most: int) -> list[Event]:
        return await store.events(wanted, after=place, limit=most, newest_first=newest_first)

    return Page(*await search(read, lambda event: event.cursor, _texts, text, after=after, limit=limit))


def _texts(event: Event) -> tuple[str | None, ...]:
    return event.type, actor_name(event.actor), event.reason, event.correlation_id, event.payload


async def follow(
    store: Store, wanted: EventFilter, *, after: str | None = None, from_start: bool = False
) -> AsyncIterator[Event]:
    """Yield every event after a cursor, from the start, or from now on, without end."""
    if after is None and not from_start:
        after = await store.log_end()
    async for event in store.follow(wanted, after=after):
        yield event


def as_json(event: Event) -> dict[str, Any]:
    """Return an event under its field names, with the values in their public form."""
    fields = event._asdict()
    del fields["cursor"]
    fields["entity_id"] = public_id(event.entity, event.entity_id)
    fields["ts"] = rfc3339(event.ts)
    fields["actor"] = actor_name(event.actor)
    fields["trace_id"] = spans.trace_id(event.trace_id)
    fields["payload"] = _payload(event.payload)
    return fields


def _payload(text: str | None) -> Any:
    """Return the payload as data. Text that is not JSON, such as a manual edit, is returned unchanged."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text

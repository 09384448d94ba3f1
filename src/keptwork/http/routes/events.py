"""Routes of the event log: pages of events, and a stream of new events."""

from __future__ import annotations

import asyncio
import json
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator
from typing import Annotated, Any

from anyio import CancelScope
from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from keptwork import errors
from keptwork.audit import events, verify
from keptwork.core.durations import moment_us
from keptwork.core.ids import lifecycle_named, resolve
from keptwork.http.auth import Administers, Reads, lasting, still_good
from keptwork.http.dependencies import LONGEST, After, Db, Most, Name, Search, answer, fails, only, opened, sealed
from keptwork.store import Event, EventFilter, Store

router = APIRouter(prefix="/api/events", tags=["events"])

LIST = "events"
RECONNECT_MS = 1_000
TOLD = {"$ref": "#/components/schemas/Moved"}

logger = logging.getLogger("keptwork.http")


class Moved(BaseModel):
    """One move of one entity. `cursor` is the position after it, in the list and in the stream."""

    entity: str
    entity_id: str
    seq: int
    epoch: int
    type: str
    trigger: str
    ts: str
    actor: str | None
    correlation_id: str | None
    trace_id: str | None
    cause: str | None
    reason: str | None
    from_state: str | None
    to_state: str
    payload: Any
    version: int
    cursor: str


class Events(BaseModel):
    """A page of events, and the cursor of the next page, or null at the end of the log."""

    events: list[Moved]
    next: str | None


Moment = Annotated[
    str | None, Query(max_length=100, description="A time (2026-11-15T17:10:20Z), or a duration before now (10m).")
]

Place = Annotated[str | None, Query(max_length=LONGEST, description="The `cursor` of an event. Omit it to start now.")]


@router.get("", response_model=Events, responses=fails(errors.BadCursor, errors.NotFound))
async def listing(
    caller: Reads,
    store: Db,
    entity: Name = None,
    id: Name = None,
    type: Name = None,
    correlation_id: Name = None,
    since: Moment = None,
    until: Moment = None,
    text: Search = None,
    after: After = None,
    limit: Most = 100,
    newest_first: bool = False,
) -> Response:
    """List the events of the tenant, oldest first. Continuing at `next` misses no event and repeats none."""
    wanted = await asked_for(store, caller.tenant_id, entity, id, type, correlation_id, since, until)
    place = opened(LIST, after)
    page = await events.page(store, wanted, after=place, limit=limit, newest_first=newest_first, text=text)
    return answer({"events": [shown(one) for one in page.events], "next": sealed(LIST, page.next)})


SENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": TOLD},
    },
}
"""A message of the stream: OpenAPI describes the message, and the content of its data."""


@router.get(
    "/stream",
    response_class=StreamingResponse,
    dependencies=[Depends(lasting)],
    responses={
        200: {"content": {"text/event-stream": {"itemSchema": SENT}}},
        **fails(errors.BadCursor, errors.NotFound),
    },
)
async def stream(
    request: Request,
    caller: Reads,
    store: Db,
    entity: Name = None,
    id: Name = None,
    type: Name = None,
    correlation_id: Name = None,
    after: Place = None,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=LONGEST)] = None,
) -> Response:
    """Stream events as they are committed, as server-sent events. The stream starts after `Last-Event-ID` or `after`,
    otherwise now. A client that reconnects with the ID of its last event misses no event and receives none twice."""
    wanted = await asked_for(store, caller.tenant_id, entity, id, type, correlation_id)
    place = opened(LIST, last_event_id or after)
    if place is None:
        place = await store.log_end()
    else:
        await store.events(wanted, after=place, limit=1)  # reject an invalid cursor before the stream starts
    return StreamingResponse(_frames(request, wanted, place), media_type="text/event-stream")


async def _frames(request: Request, wanted: EventFilter, after: str) -> AsyncIterator[str]:
    """Yield messages until the client leaves, the server shuts down, or the key becomes invalid."""
    state, clock = request.app.state, asyncio.get_running_loop().time
    # A client that loses the connection before the first event can resume here too.
    yield f"retry: {RECONNECT_MS}\nid: {sealed(LIST, after)}\n\n"
    following = state.broadcast.follow(wanted, after)
    stopping = asyncio.ensure_future(state.stopping.wait())
    coming: asyncio.Future[Event] = asyncio.ensure_future(anext(following))
    said = checked = clock()
    try:
        while not stopping.done():
            await asyncio.wait((coming, stopping), timeout=state.limits.recheck_seconds, return_when=FIRST_COMPLETED)
            if coming.done():
                yield frame(coming.result())
                coming, said = asyncio.ensure_future(anext(following)), clock()
            elif clock() - said >= state.limits.beat_seconds:
                yield ": still here\n\n"
                said = clock()
            if clock() - checked >= state.limits.recheck_seconds:
                await still_good(request, request.scope["state"]["token"])
                checked = clock()
    except errors.KeptworkError as error:  # the client reconnects with its last ID, and is rejected then
        logger.info("a stream ended: %s", error)
    finally:
        with CancelScope(shield=True):  # a client that left has cancelled this task
            await _ended(coming, stopping)
            await following.aclose()


async def _ended(*futures: asyncio.Future[Any]) -> None:
    for one in futures:
        one.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


def frame(event: Event) -> str:
    """Return an event as a server-sent message."""
    told = shown(event)
    return f"id: {told['cursor']}\nevent: {event.type}\ndata: {json.dumps(told)}\n\n"


def shown(event: Event) -> dict[str, Any]:
    """Return an event as JSON data."""
    return only(Moved, {**events.as_json(event), "cursor": sealed(LIST, event.cursor)})


async def asked_for(
    store: Store,
    tenant_id: int,
    entity: str | None = None,
    id: str | None = None,
    type: str | None = None,
    correlation_id: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> EventFilter:
    """Return the filter for these parameters. Raise an error for an invalid ID or time."""
    now = await store.now() if since or until else 0
    name, key = lifecycle_named(entity).name if entity else None, None
    if id is not None:
        lifecycles, key = resolve(id)
        name = name or (lifecycles[0].name if len(lifecycles) == 1 else None)
    return EventFilter(
        tenant_id=tenant_id,
        entity=name,
        entity_id=key,
        type=type,
        correlation_id=correlation_id,
        since=moment_us(since, now) if since else None,
        until=moment_us(until, now) if until else None,
    )


# The route that exports the event log of a tenant: every event as a line of JSON, in commit order.


audit_router = APIRouter(prefix="/api/audit", tags=["audit"])

LINES = "application/x-ndjson"


@audit_router.get(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"content": {LINES: {}}}, **fails(errors.BadCursor)},
)
async def export(caller: Administers, store: Db, after: After = None) -> Response:
    """Export all events of the tenant, or those after a cursor, as lines of JSON. Each line has a cursor at which a
    later export, or an interrupted one, can continue."""
    wanted, place = EventFilter(tenant_id=caller.tenant_id), opened(LIST, after)
    await store.events(wanted, after=place, limit=1)  # reject an invalid cursor before the response starts
    return StreamingResponse(_lines(store, wanted, place), media_type=LINES)


async def _lines(store: Store, wanted: EventFilter, after: str | None) -> AsyncIterator[str]:
    async for page in verify.pages(store, wanted, after):
        yield "".join(f"{json.dumps(shown(event))}\n" for event in page)

"""The route that exports the event log of a tenant: every event as a line of JSON, in commit order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from keptwork import errors
from keptwork.audit import verify as service
from keptwork.http.auth import Administers
from keptwork.http.dependencies import After, Db, fails
from keptwork.http.dependencies_cursors import opened
from keptwork.http.routes.events import LIST, shown
from keptwork.store import EventFilter, Store

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
    async for page in service.pages(store, wanted, after):
        yield "".join(f"{json.dumps(shown(event))}\n" for event in page)

"""The page of the event log: newest first, updated live, with filters."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from keptwork.audit import events as service
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.dashboard.page import event_types, pages, render, stream
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, Text, opened, sealed
from keptwork.http.routes.events import LIST, asked_for, shown
from keptwork.store import Event
from keptwork.store.contract.operations_search import LONGEST_TEXT

router = pages("/events")

AT_ONCE = 50
LONGEST_DETAIL = 2_000

ENTITIES = (("all", ""), *((name.replace("-", " "), name) for name in LIFECYCLES))
FOLLOWED = ("entity", "id", "type", "correlation_id")
"""The filters that the event stream also supports."""

Chosen = Annotated[Text, Query(max_length=500)]
Sought = Annotated[Text, Query(max_length=LONGEST_TEXT)]
Moment = Annotated[Text, Query(max_length=100)]


@router.get("")
async def listing(
    request: Request,
    caller: Reads,
    store: Db,
    entity: Chosen = "",
    type: Chosen = "",
    id: Chosen = "",
    correlation_id: Chosen = "",
    since: Moment = "",
    text: Sought = "",
    after: After = None,
) -> Response:
    """Show a page of the event log. Only the newest page is updated live."""
    given = {"entity": entity, "type": type, "id": id, "correlation_id": correlation_id, "since": since, "text": text}
    query = {name: value.strip() for name, value in given.items() if value.strip()}
    wanted = await asked_for(store, caller.tenant_id, **_among(query, *FOLLOWED, "since"))
    found = await service.page(
        store, wanted, after=opened(LIST, after), limit=AT_ONCE, newest_first=True, text=query.get("text")
    )
    return render(
        request,
        caller,
        "events.html",
        live="" if after else stream(**_among(query, *FOLLOWED)),
        events=[_row(one) for one in found.events],
        next=sealed(LIST, found.next),
        after=after,
        query=query,
        entities=ENTITIES,
        types=event_types().split(),
    )


def _among(query: dict[str, str], *names: str) -> dict[str, str]:
    return {name: query[name] for name in names if name in query}


def _row(event: Event) -> dict[str, Any]:
    """Return an event as JSON data, with its payload as text. A long payload is shortened."""
    told = shown(event)
    detail = None if told["payload"] is None else json.dumps(told["payload"], indent=2, ensure_ascii=False)
    return {**told, "detail": detail and detail[:LONGEST_DETAIL], "cut": len(detail or "") > LONGEST_DETAIL}

"""Pages of circuit breakers: failing services, held jobs, and next probes."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from keptwork.core.lifecycles import BREAKER
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.breakers import LIST as BREAKER_LIST
from keptwork.http.routes.breakers import Tool
from keptwork.http.routes.events import shown
from keptwork.jobs import breakers as service
from keptwork.store.contract.breakers import BreakerView

breakers_router = pages("/breakers")


@breakers_router.get("")
async def list_breakers(request: Request, caller: Reads, store: Db, after: After = None) -> Response:
    """List circuit breakers by name."""
    page = await service.page(store, caller.tenant_id, after=opened(BREAKER_LIST, after))
    now = await store.now()
    found = [_breaker_shown(one, now) for one in page.breakers]
    return render(
        request, caller, "breakers.html", live=EVERY_2_SECONDS, breakers=found, next=sealed(BREAKER_LIST, page.next)
    )


@breakers_router.get("/{tool:path}")
async def show(request: Request, tool: Tool, caller: Reads, store: Db) -> Response:
    """Show one circuit breaker and its history.

    Counted failures and held jobs are not events of the breaker, so the page polls.
    """
    standing, events = await service.show(store, caller.tenant_id, tool)
    return render(
        request,
        caller,
        "breaker.html",
        live=EVERY_2_SECONDS,
        breaker=_breaker_shown(standing, await store.now()),
        events=[shown(event) for event in reversed(events)],
    )


def _breaker_shown(standing: BreakerView, now: int) -> dict[str, Any]:
    told = service.as_json(standing)
    told["what_next"] = service.what_next(standing, now)
    told["may_reset"] = "reset" in BREAKER.allowed_from(told["state"])
    return told

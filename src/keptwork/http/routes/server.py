"""Routes for liveness, readiness, and metrics."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.http.auth import Reads
from keptwork.http.dependencies import Db, WholeDb, answer, fails, refusals
from keptwork.observability import prometheus, stats

router = APIRouter(tags=["health"])

READY_SECONDS = 5.0


class Health(BaseModel):
    """The health of the server."""

    status: Literal["ok", "ready"]


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Check that the process responds. Does not query the database."""
    return answer({"status": "ok"})


@router.get("/readyz", response_model=Health, responses=refusals(errors.StoreError, errors.ShuttingDown))
async def readyz(request: Request, store: WholeDb) -> Response:
    """Check that the server can serve requests: it is not shutting down, and the database responds, has the schema with
    which this server opened it, and shows its rows to the server's login."""
    if request.app.state.stopping.is_set():
        raise errors.ShuttingDown
    try:
        async with asyncio.timeout(READY_SECONDS):
            await store.insist_on_sight()
            await store.tenants()
    except TimeoutError:
        raise errors.StoreError(url=store.url, detail=f"it did not answer within {READY_SECONDS:g} s") from None
    return answer({"status": "ready"})


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **fails()}, response_class=Response)
async def metrics(caller: Reads, whole: WholeDb, store: Db) -> Response:
    """Show the metrics of the caller's tenant and of the engine in the Prometheus text format."""
    figures = await stats.current(store, caller.tenant_id, whole)
    return Response(prometheus.text(figures).encode(), media_type=prometheus.CONTENT_TYPE)

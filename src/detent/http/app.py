"""The application: one store, and the routes on top of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from detent import __version__
from detent.http import problems
from detent.http.auth import Authenticate
from detent.http.broadcast import Broadcast
from detent.http.door import Door
from detent.http.limits import Limits
from detent.http.pages import Problem
from detent.http.routes import ROUTERS
from detent.store import Store
from detent.worker.remote_claims import Claims

ABOUT = (
    "Durable agent work: declared lifecycles, kept and enforced by a database. Errors are problem documents (RFC "
    "9457); every request that changes something takes an idempotency key."
)


def create_app(store: Store, authenticate: Authenticate, limits: Limits | None = None) -> FastAPI:
    """The API over an open store, which whoever opened it closes when the server has ended."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.stopping = asyncio.Event()
        app.state.broadcast = Broadcast(store)
        app.state.claims = Claims(store, app.state.stopping)
        try:
            yield
        finally:
            await app.state.claims.room.close()
            await app.state.broadcast.close()

    # /docs is a page of our own: the framework's would fetch scripts from elsewhere.
    app = FastAPI(
        title="Detent", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.store = store
    app.state.authenticate = authenticate
    app.state.limits = limits = limits or Limits()
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(Door, limits=limits)
    app.openapi = lambda: document(app)  # type: ignore[method-assign] # the framework's documented way
    return app


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the one schema that the framework does not find by itself."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema()
        app.openapi_schema = made
    return app.openapi_schema

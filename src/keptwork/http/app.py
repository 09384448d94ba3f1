"""The FastAPI application: one store, and the routes on top of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from keptwork import __version__
from keptwork.http import dependencies as tracing
from keptwork.http import idempotency, problems
from keptwork.http.auth import BEARER, SCOPE_OF, Authenticate, narrows, of_tenant
from keptwork.http.dependencies import Problem, trace
from keptwork.http.event_broadcast import Broadcast
from keptwork.http.idempotency import key_given, once
from keptwork.http.middleware import Door
from keptwork.http.rate_limit import Guesses, Limits, Room, Turnstile
from keptwork.http.routes import ROUTERS
from keptwork.settings import Config
from keptwork.store import Store
from keptwork.workers.remote.claims import Claims

# Find the route of a path by the noun and the length of the path.
#
# The framework tries every router and route in order, so the last of a hundred routes would be slow. A path starts with
# its noun (`/api/jobs/…`), and few routes share both noun and length.


API = "api"
CHOSEN = "keptwork.route"
ANY_LENGTH = ":path}"
"""Marks a path parameter that can contain slashes."""


class Directory(BaseRoute):
    """All routes. Routes with the same noun and length are tried in order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_noun: dict[str, list[Route]] = {}
        for route in routes:
            self._by_noun.setdefault(noun(route.path), []).append(route)
        self._by_length = {
            (about, length): [route for route in found if length in _lengths(route, most)]
            for about, found in self._by_noun.items()
            for most in [max(route.path.count("/") for route in found)]
            for length in range(most + 1)
        }

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return the route of the path and method, otherwise the first route of the path, which rejects the method."""
        other: tuple[Match, Scope] = Match.NONE, {}
        if scope["type"] != "http":
            return other
        for route in self._candidates(scope["path"]):
            match, child = route.matches(scope)
            if match is Match.FULL:
                return match, {**child, CHOSEN: route}
            if match is Match.PARTIAL and other[0] is Match.NONE:
                other = match, {**child, CHOSEN: route}
        return other

    def _candidates(self, path: str) -> Sequence[Route]:
        """Return the routes to try. A path longer than every route can match only a parameter with slashes."""
        about = noun(path)
        found = self._by_length.get((about, path.count("/")))
        return self._by_noun.get(about, ()) if found is None else found

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[CHOSEN].handle(scope, receive, send)


def _lengths(route: Route, most: int) -> range:
    """Return the possible numbers of slashes in a path of this route."""
    own = route.path.count("/")
    return range(own, most + 1 if ANY_LENGTH in route.path else own + 1)


def noun(path: str) -> str:
    """Return the noun that a path is about.

    >>> noun("/api/jobs/{id}/cancel"), noun("/api/jobs"), noun("/healthz"), noun("/")
    ('jobs', 'jobs', 'healthz', '')
    """
    first, _, rest = path[1:].partition("/")
    return rest.partition("/")[0] if first == API else first


ABOUT = (
    "Durable agent work: declared lifecycles, stored and enforced by a database. Errors are "
    "problem documents (RFC 9457). Every request that changes something accepts an idempotency "
    "key."
)

NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""Only middleware.py creates spans for requests. Spans of the framework would be duplicates, and contain what
clients
send."""


def create_app(
    store: Store, authenticate: Authenticate, limits: Limits | None = None, config: Config | None = None
) -> FastAPI:
    """Create the API over an open store.

    The caller closes the store after the server has ended. Tools and skills come from the configuration.
    """
    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.stopping = asyncio.Event()
        app.state.broadcast = Broadcast(store, partial(of_tenant, app.state))
        app.state.narrows = await narrows(store, limits.row_security)
        app.state.claims = Claims(store, app.state.stopping)
        try:
            yield
        finally:
            await app.state.claims.room.close()
            await app.state.broadcast.close()

    app = _routed(lifespan=lifespan)
    app.state.store = store
    app.state.authenticate = authenticate
    app.state.config = config or Config()
    app.state.limits = limits
    app.state.turnstile = Turnstile(limits.allowance, store.tenant_limits)
    app.state.guesses = Guesses(limits.failed_keys_per_minute)
    app.state.room = Room(store.waiting_jobs)
    problems.install(app)
    app.add_middleware(Door, limits=limits)
    app.openapi = lambda: document(app)  # type: ignore[method-assign] # the framework's documented way
    return app


def _routed(**more: Any) -> FastAPI:
    """Create an application with every route.

    /docs is a page of this package, because the framework's page would load scripts from other sites.
    """
    app = FastAPI(
        title="Keptwork",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        telemetry=NO_TELEMETRY,
        **more,
    )
    app.router.routes.insert(0, Directory(ROUTES))
    return app


def operation_id(route: APIRoute) -> str:
    """Return the ID of an operation, which names the client's method: its tag and its function.

    A short path to a route that is also under /api gets a different ID, because every ID must be unique.
    """
    tag = str((route.tags or ["server"])[0]).replace(" ", "_").replace("-", "_")
    short = "short_" if route.path.startswith(SHORT) else ""
    return f"{short}{tag}_{NAMES.get(route.name, route.name)}"


SHORT = "/runs"
"""Path to runs without /api, as clients of other APIs expect."""


NAMES = {"listing": "list"}
"""Operation names of functions that cannot have that name themselves."""


def named(routers: Iterable[APIRouter]) -> Iterator[APIRoute]:
    """Yield every route with its operation ID.

    If two routes of a tag would have the same ID, the route with another noun appends it: `workers_start` and
    `workers_start_job`.
    """
    found = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    names = Counter(map(operation_id, found))
    for route in found:
        name, about = operation_id(route), noun(route.path)
        again = names[name] > 1 and not name.startswith(f"{about.replace('-', '_')}_")
        route.operation_id = f"{name}_{about.removesuffix('s')}" if again else name
        yield route


ROUTES = tuple(named(ROUTERS))


def described() -> dict[str, Any]:
    """Return the OpenAPI document without a server."""
    return document(_routed())


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the parts that the framework does not find."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=ROUTES)
        parts = made.setdefault("components", {})
        parts.setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
        parts["securitySchemes"] = {"HTTPBearer": BEARER}
        for route in ROUTES:
            if route.include_in_schema:
                _tell(route, made["paths"])
        app.openapi_schema = made
    return app.openapi_schema


def _tell(route: APIRoute, paths: dict[str, Any]) -> None:
    """Add the key and the headers that dependencies read from the request."""
    asked = {one.call for one in route.dependant.dependencies}
    headers = [parameter for dependency, parameter in _HEADERS.items() if dependency in asked]
    for method in route.methods or ():
        said = paths[route.path_format][method.lower()]
        if not asked.isdisjoint(SCOPE_OF):
            said["security"] = [{"HTTPBearer": []}]
        if headers:
            said["parameters"] = [*said.get("parameters", ()), *headers]


_HEADERS = {once: idempotency.PARAMETER, key_given: idempotency.PARAMETER, trace: tracing.PARAMETER}

"""The routes, as the documentation lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fastapi.routing import APIRoute

from keptwork.http.auth import SCOPE_OF
from keptwork.http.routes import ROUTERS


class Told(NamedTuple):
    """A route: its method, path, required scope, and description."""

    method: str
    path: str
    scope: str | None
    about: str


def routes() -> Iterator[Told]:
    """Yield every route of the API, in the order of the files."""
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                about = (route.endpoint.__doc__ or "").strip()
                yield Told(min(route.methods or {"GET"}), route.path_format, _scope(route), about)


def _scope(route: APIRoute) -> str | None:
    asked = (SCOPE_OF.get(one.call) for one in route.dependant.dependencies if one.call is not None)
    return next((scope for scope in asked if scope is not None), None)

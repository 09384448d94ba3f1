"""Whether answers are what the routes say of themselves; asked of every answer that a test gets."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi.routing import APIRoute
from pydantic import BaseModel

from keptwork.http import problems
from keptwork.http.dependencies import Problem
from keptwork.http.routes import ROUTERS

ANYWHERE = frozenset({400, 405, 408, 413, 415, 429, 431, 500, 503})
"""What the door and the server may answer to any request."""


def route_of(method: str, path: str) -> APIRoute | None:
    """The route that such a request goes to."""
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and method in (route.methods or ()) and route.path_regex.match(path):
                return route
    return None


def check_declared(answer: httpx.Response) -> None:
    """That the route says it answers so: this status, these fields, and no others."""
    route = route_of(answer.request.method, answer.request.url.path)
    kind = answer.headers.get("content-type", "")
    if route is None or kind not in ("application/json", problems.MEDIA_TYPE):
        return
    answer.read()
    if kind == problems.MEDIA_TYPE:
        assert answer.status_code in route.responses or answer.status_code in ANYWHERE, answer.text
        assert Problem.model_validate(answer.json()).status == answer.status_code
        return
    assert answer.status_code == (route.status_code or 200)
    assert issubclass(route.response_model, BaseModel)
    assert undeclared(route.response_model, answer.json()) == {}, answer.text


def undeclared(model: type[BaseModel], shown: dict[str, Any]) -> dict[str, Any]:
    """What is shown and not declared, or otherwise than declared."""
    expected = model.model_validate(shown, strict=True).model_dump(by_alias=True)
    return {name: value for name, value in shown.items() if expected.get(name, ...) != value}

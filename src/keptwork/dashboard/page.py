"""Parts that all pages share: rendering, the content security policy, live updates, and errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import RedirectResponse, Response

from keptwork import errors
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.dashboard import page_assets, page_looks
from keptwork.http import problems
from keptwork.http.auth import Principal, may

ROOT = "/ui"
SIGN_IN = f"{ROOT}/login"
HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Forbids external content and inline code, so that text of users and tools is never run."""

MENU = (
    ("Overview", f"{ROOT}/"),
    ("Flows", f"{ROOT}/flows"),
    ("Approvals", f"{ROOT}/approvals"),
    ("Jobs", f"{ROOT}/jobs"),
    ("Dead letters", f"{ROOT}/dead-letters"),
    ("Agents", f"{ROOT}/agents"),
    ("Crews", f"{ROOT}/crews"),
    ("Workers", f"{ROOT}/workers"),
    ("Schedules", f"{ROOT}/schedules"),
    ("Breakers", f"{ROOT}/breakers"),
    ("Costs", f"{ROOT}/costs"),
    ("Events", f"{ROOT}/events"),
)

EVERY_2_SECONDS = "every 2"
"""Updates a page by requesting it again while it is visible."""


def stream(**wanted: str) -> str:
    """Return the stream that updates a page about one entity: each event requests the page again.

    >>> stream(correlation_id="ws_1")
    '/api/events/stream?correlation_id=ws_1'
    """
    return f"/api/events/stream?{'&'.join(f'{name}={quote(value)}' for name, value in wanted.items())}"


class PageRoute(APIRoute):
    """A route whose errors are pages too. Users who have not signed in are redirected to the sign-in page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except errors.Unauthenticated:
                return to_sign_in(request)
            except errors.KeptworkError as error:
                return failed(request, error)
            except RequestValidationError as misfit:
                found = [(".".join(map(str, one["loc"][1:])), one["msg"]) for one in misfit.errors()]
                return failed(request, errors.InvalidRequest(problems=found[: problems.MOST_TOLD]))

        return handle


def pages(prefix: str = "") -> APIRouter:
    """Return a router for pages, which are not part of the API."""
    return APIRouter(prefix=f"{ROOT}{prefix}", route_class=PageRoute, include_in_schema=False)


def render(request: Request, caller: Principal, template: str, *, live: str = "", **facts: Any) -> Response:
    """Return a page for a signed-in user. `live` selects the updates: `EVERY_2_SECONDS`, a `stream`, or none."""
    given = {
        "caller": caller,
        "may": lambda scope: may(caller, scope),
        "here": request.url.path,
        "live": live,
        "event_types": event_types() if live.startswith("/") else "",
        **facts,
    }
    return html(template, 200, **given)


def failed(request: Request, error: errors.KeptworkError) -> Response:
    """Return an error as a page, with the same details as in the API."""
    told = problems.document(error)
    caller = request.scope["state"].get("principal")
    return html("error.html", error.status, caller=caller, here=request.url.path, live="", event_types="", told=told)


async def lost(request: Request) -> Response:
    """Return the page for an unknown path."""
    return failed(request, errors.NoSuchRoute())


def to_sign_in(request: Request) -> Response:
    """Return a redirect to the sign-in page, which then leads back to this page."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{SIGN_IN}?next={quote(here, safe='')}", 303)


def own_address(text: str) -> str:
    """Return the page to show after signing in: always a page of the dashboard.

    >>> own_address("/ui/jobs?state=failed"), own_address("https://elsewhere.example/ui/"), own_address("//else/ui/")
    ('/ui/jobs?state=failed', '/ui/', '/ui/')
    """
    parts = urlsplit(text)
    own = not parts.scheme and not parts.netloc and text.startswith(f"{ROOT}/") and "\\" not in text
    return text if own else f"{ROOT}/"


def html(template: str, status: int, **facts: Any) -> Response:
    """Return a page with the policy that allows only scripts of the dashboard."""
    made = _environment().get_template(template).render(now=time.time_ns() // 1_000, **facts)
    return Response(made.encode("utf-8", "replace"), status, {"Content-Security-Policy": POLICY}, HTML)


@cache
def event_types() -> str:
    """Return the names of all event types. A browser receives only named events that it listens for."""
    return " ".join(sorted({move.event for lifecycle in LIFECYCLES.values() for move in lifecycle.moves}))


@cache
def _environment() -> Environment:
    """Return the template environment. All values are escaped, and a missing value is an error."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"static": page_assets.address, "menu": MENU, "root": ROOT}
    made.filters |= page_looks.FILTERS
    return made

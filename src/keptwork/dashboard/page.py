"""What every page has in common: how it is made, what it is allowed, and what becomes of errors on the way."""

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
from keptwork.dashboard import assets, looks
from keptwork.http import problems
from keptwork.http.auth import Principal, may
from keptwork.lifecycle import LIFECYCLES

ROOT = "/ui"
SIGN_IN = f"{ROOT}/login"
HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing from elsewhere, and nothing that is written into a page: what users and tools said is never run."""

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
"""How lists keep up: they are asked for again while somebody looks at them."""


def stream(**wanted: str) -> str:
    """How a page about one thing keeps up: it is asked for again when the log says that something of it has moved.

    >>> stream(correlation_id="ws_1")
    '/api/events/stream?correlation_id=ws_1'
    """
    return f"/api/events/stream?{'&'.join(f'{name}={quote(value)}' for name, value in wanted.items())}"


class PageRoute(APIRoute):
    """A route whose errors are pages, too. Whoever has not signed in is asked to."""

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
    """A router for pages; they are no part of the API."""
    return APIRouter(prefix=f"{ROOT}{prefix}", route_class=PageRoute, include_in_schema=False)


def render(request: Request, caller: Principal, template: str, *, live: str = "", **facts: Any) -> Response:
    """A page for somebody who has signed in. `live` says how it keeps up: `EVERY_2_SECONDS`, a `stream`, or not."""
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
    """What went wrong, as a page: what an API would tell, and no more."""
    told = problems.document(error)
    caller = request.scope["state"].get("principal")
    return html("error.html", error.status, caller=caller, here=request.url.path, live="", event_types="", told=told)


async def lost(request: Request) -> Response:
    """An address that leads nowhere."""
    return failed(request, errors.NoSuchRoute())


def to_sign_in(request: Request) -> Response:
    """Where to sign in, and then come back here."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{SIGN_IN}?next={quote(here, safe='')}", 303)


def own_address(text: str) -> str:
    """Where to go on after signing in: a page of ours, whatever the address said.

    >>> own_address("/ui/jobs?state=failed"), own_address("https://elsewhere.example/ui/"), own_address("//else/ui/")
    ('/ui/jobs?state=failed', '/ui/', '/ui/')
    """
    parts = urlsplit(text)
    own = not parts.scheme and not parts.netloc and text.startswith(f"{ROOT}/") and "\\" not in text
    return text if own else f"{ROOT}/"


def html(template: str, status: int, **facts: Any) -> Response:
    """A page, with the policy that keeps it from running anything but ours."""
    made = _environment().get_template(template).render(now=time.time_ns() // 1_000, **facts)
    return Response(made.encode("utf-8", "replace"), status, {"Content-Security-Policy": POLICY}, HTML)


@cache
def event_types() -> str:
    """The names of all events: a browser hears only those it was told the names of."""
    return " ".join(sorted({move.event for lifecycle in LIFECYCLES.values() for move in lifecycle.moves}))


@cache
def _environment() -> Environment:
    """Everything is escaped, and a name that a page forgot to give is an error, not nothing."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"static": assets.address, "menu": MENU, "root": ROOT}
    made.filters |= looks.FILTERS
    return made

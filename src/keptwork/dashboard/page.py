"""Parts that all pages share: rendering, the content security policy, live updates, and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from keptwork import errors
from keptwork.core import durations
from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import LIFECYCLES, Lifecycle, Verb
from keptwork.core.money import dollars
from keptwork.errors import NotFound
from keptwork.http import problems
from keptwork.http.auth import Principal, may

# Styles and scripts: read once, named by their content, and cached by browsers until they change.


FOLDER = Path(__file__).parent / "static"
PREFIX = "/ui/static"
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
FOR_GOOD = "public, max-age=31536000, immutable"

router = APIRouter(prefix=PREFIX)


@cache
def files() -> dict[str, bytes]:
    """Return the content of every file by its name."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in KINDS}


@cache
def address(name: str) -> str:
    """Return the URL of a file, which changes with its content."""
    return f"{PREFIX}/{name}?v={sha256(files()[name]).hexdigest()[:12]}"


@router.get("/{name}", include_in_schema=False)
async def asset(name: str) -> Response:
    """Return one file. It needs no key."""
    if name not in files():
        raise NotFound(what="file", id=name)
    return Response(files()[name], 200, {"Cache-Control": FOR_GOOD}, KINDS[Path(name).suffix])


# Format values for pages: states, times, amounts, IDs, and data.


LONGEST_DATA = 20_000
"""Maximum number of characters of a result or payload on a page. The API returns all of it."""

_TONES = (
    ("good", {Verb.SUCCEED, Verb.CLOSE}),
    ("bad", {Verb.FAIL, Verb.REJECT, Verb.DEAD_LETTER, Verb.TRIP, Verb.REOPEN}),
    ("gone", {Verb.CANCEL, Verb.SKIP, Verb.TERMINATE, Verb.EXPIRE}),
    ("asks", {Verb.GATE, Verb.PAUSE, Verb.PROBE}),
    ("waits", {Verb.VALIDATE}),
)
"""The tone of a state by the moves that lead to it. The first match wins."""

_PAGES = {
    "job": "jobs",
    "run": "flows",
    "ws": "flows",
    "crew": "crews",
    "agent": "agents",
    "w": "workers",
}
"""The page of an entity, by the prefix of its public ID."""


@cache
def tones(lifecycle: Lifecycle) -> dict[str, str]:
    """Return the tone of each state by its name: good, bad, gone, asks, busy, or waits.

    >>> from keptwork.core.lifecycles import JOB, BREAKER, RUN
    >>> tones(JOB)["dead_lettered"], tones(JOB)["queued"], tones(JOB)["running"], tones(BREAKER)["CLOSED"]
    ('bad', 'waits', 'busy', 'good')
    >>> tones(RUN)["RUNNING"]
    'busy'
    """
    found = {}
    for state in lifecycle.states:
        verbs = {move.verb for move in lifecycle.moves if move.target == state}
        if Verb.SUCCEED in {move.verb for move in lifecycle.moves if state in move.sources}:
            verbs -= {Verb.SUCCEED, Verb.APPROVE}  # a state before a success is not final
        found[state.name] = next((tone for tone, leading in _TONES if verbs & leading), "busy")
    return found | ({} if lifecycle.name == "breaker" else {lifecycle.initial.name: "waits"})


@cache
def _tone(state: str) -> str:
    known = [tones(lifecycle)[state] for lifecycle in LIFECYCLES.values() if state in tones(lifecycle)]
    return known[0] if known else "waits"


def chip(state: str, kind: str | None = None) -> Markup:
    """Return a state as text in its color. `kind` selects the lifecycle if several have a state of that name.

    >>> chip("S_RUNNING")
    Markup('<span class="chip busy" title="S_RUNNING">running</span>')
    """
    tone = tones(LIFECYCLES[kind])[state] if kind in LIFECYCLES else _tone(state)
    return Markup('<span class="chip {}" title="{}">{}</span>').format(tone, state, _said(state))


def _said(state: str) -> str:
    return state.removeprefix("S_").lower().replace("_", " ")


def states_to_choose(lifecycle: Lifecycle) -> list[tuple[str, str]]:
    """Return the states of a lifecycle as choices for a list, after the choice of all.

    >>> from keptwork.core.lifecycles import BREAKER
    >>> states_to_choose(BREAKER)
    [('all', ''), ('closed', 'CLOSED'), ('open', 'OPEN'), ('half open', 'HALF_OPEN')]
    """
    return [("all", ""), *((_said(state.name), state.name) for state in lifecycle.states)]


def when(moment: str | int | None) -> Markup:
    """Return a time relative to now. Its tooltip has the time itself."""
    if moment is None:
        return Markup("–")
    us = _us(moment)
    shown = durations.ago(us, time.time_ns() // 1_000)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(rfc3339(us), durations.moment(us), shown)


def between(begun: str | int | None, ended: str | int | None) -> str:
    """Return how long something took, or has taken so far.

    >>> between(1_000_000, 2_500_000), between(None, None)
    ('1.5 s', '–')
    """
    if begun is None:
        return "–"
    return durations.took((time.time_ns() // 1_000 if ended is None else _us(ended)) - _us(begun))


def seconds(value: float | None) -> str:
    """Return a duration in seconds as text."""
    return durations.took(None if value is None else value * 1_000_000)


def _us(moment: str | int) -> int:
    if isinstance(moment, int):
        return moment
    return int(datetime.fromisoformat(moment).timestamp() * 1_000_000)


def short(id: str) -> str:
    """Return a short form of an ID: its prefix and its end.

    >>> short("job_0199c82c-c000-7000-807a-a2a0b8276ff8")
    'job_…b8276ff8'
    """
    prefix, _, rest = id.partition("_")
    return f"{prefix}_…{rest[-8:]}" if len(rest) > 12 else id


def linked(id: str | None) -> Markup:
    """Return an ID with a link to its page, if there is one."""
    if id is None:
        return Markup("–")
    page = _PAGES.get(id.partition("_")[0])
    if page is None:
        return Markup('<code title="{}">{}</code>').format(id, short(id))
    return Markup('<a class="id" href="/ui/{}/{}" title="{}">{}</a>').format(page, id, id, short(id))


def data(value: Any) -> Markup:
    """Return data in a readable layout. Long data is shortened, with a note."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    cut = len(text) - LONGEST_DATA
    more = Markup('<p class="dim">{} more characters; the API has all of it.</p>').format(f"{cut:,}") if cut > 0 else ""
    return Markup('<pre class="data" tabindex="0">{}</pre>{}').format(text[:LONGEST_DATA], more)


def percent(part: float | None) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.987), percent(None)
    ('98.7 %', '–')
    """
    return "–" if part is None else f"{part:.1%}".replace("%", " %").replace(".0 ", " ")


def many(count: int) -> str:
    """Return a number with separators.

    >>> many(12345)
    '12,345'
    """
    return f"{count:,}"


FILTERS: dict[str, Callable[..., Any]] = {
    "between": between,
    "chip": chip,
    "data": data,
    "linked": linked,
    "many": many,
    "money": dollars,
    "percent": percent,
    "seconds": seconds,
    "short": short,
    "size": durations.size,
    "took": durations.took,
    "when": when,
}
"""The filters by their names in templates."""


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
    made.globals |= {"static": address, "menu": MENU, "root": ROOT}
    made.filters |= FILTERS
    return made

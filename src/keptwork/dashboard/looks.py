"""How things look on a page: states, times, money, ids and data, the way people read them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from markupsafe import Markup

from keptwork import words
from keptwork.budget import dollars
from keptwork.lifecycle import LIFECYCLES, Lifecycle, Verb
from keptwork.moments import rfc3339

LONGEST_DATA = 20_000
"""How many characters of a result or a payload a page shows; the API has all of it."""

_TONES = (
    ("good", {Verb.SUCCEED, Verb.CLOSE}),
    ("bad", {Verb.FAIL, Verb.REJECT, Verb.DEAD_LETTER, Verb.TRIP, Verb.REOPEN}),
    ("gone", {Verb.CANCEL, Verb.SKIP, Verb.TERMINATE, Verb.EXPIRE}),
    ("asks", {Verb.GATE, Verb.PAUSE, Verb.PROBE}),
    ("waits", {Verb.VALIDATE}),
)
"""What a state means to whoever looks, by the moves that lead there; the first that fits."""

_PAGES = {
    "job": "jobs",
    "run": "flows",
    "ws": "flows",
    "crew": "crews",
    "agent": "agents",
    "w": "workers",
}
"""By the prefix of a public id, where its page is."""


@cache
def tones(lifecycle: Lifecycle) -> dict[str, str]:
    """By the name of each state: good, bad, gone, asks, busy or waits.

    >>> from keptwork.lifecycle import JOB, BREAKER, RUN
    >>> tones(JOB)["dead_lettered"], tones(JOB)["queued"], tones(JOB)["running"], tones(BREAKER)["CLOSED"]
    ('bad', 'waits', 'busy', 'good')
    >>> tones(RUN)["RUNNING"]
    'busy'
    """
    found = {}
    for state in lifecycle.states:
        verbs = {move.verb for move in lifecycle.moves if move.target == state}
        if Verb.SUCCEED in {move.verb for move in lifecycle.moves if state in move.sources}:
            verbs -= {Verb.SUCCEED, Verb.APPROVE}  # what a success is yet to follow is not the end of it
        found[state.name] = next((tone for tone, leading in _TONES if verbs & leading), "busy")
    return found | ({} if lifecycle.name == "breaker" else {lifecycle.initial.name: "waits"})


@cache
def _tone(state: str) -> str:
    known = [tones(lifecycle)[state] for lifecycle in LIFECYCLES.values() if state in tones(lifecycle)]
    return known[0] if known else "waits"


def chip(state: str, kind: str | None = None) -> Markup:
    """A state, in words and in its colour. Where two kinds of things have states of one name, `kind` tells which.

    >>> chip("S_RUNNING")
    Markup('<span class="chip busy" title="S_RUNNING">running</span>')
    """
    tone = tones(LIFECYCLES[kind])[state] if kind in LIFECYCLES else _tone(state)
    return Markup('<span class="chip {}" title="{}">{}</span>').format(tone, state, _said(state))


def _said(state: str) -> str:
    return state.removeprefix("S_").lower().replace("_", " ")


def states_to_choose(lifecycle: Lifecycle) -> list[tuple[str, str]]:
    """The states of something as choices for a list of it, with all of them first.

    >>> from keptwork.lifecycle import BREAKER
    >>> states_to_choose(BREAKER)
    [('all', ''), ('closed', 'CLOSED'), ('open', 'OPEN'), ('half open', 'HALF_OPEN')]
    """
    return [("all", ""), *((_said(state.name), state.name) for state in lifecycle.states)]


def when(moment: str | int | None) -> Markup:
    """A moment, as how long ago it is or how far ahead; pointing at it shows the time itself."""
    if moment is None:
        return Markup("–")
    us = _us(moment)
    shown = words.ago(us, time.time_ns() // 1_000)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(rfc3339(us), words.moment(us), shown)


def between(begun: str | int | None, ended: str | int | None) -> str:
    """How long something took, or has taken so far.

    >>> between(1_000_000, 2_500_000), between(None, None)
    ('1.5 s', '–')
    """
    if begun is None:
        return "–"
    return words.took((time.time_ns() // 1_000 if ended is None else _us(ended)) - _us(begun))


def seconds(value: float | None) -> str:
    """A length of time that is known in seconds."""
    return words.took(None if value is None else value * 1_000_000)


def _us(moment: str | int) -> int:
    if isinstance(moment, int):
        return moment
    return int(datetime.fromisoformat(moment).timestamp() * 1_000_000)


def short(id: str) -> str:
    """An id as it is told apart from others: what kind of thing it is, and its end.

    >>> short("job_0199c82c-c000-7000-807a-a2a0b8276ff8")
    'job_…b8276ff8'
    """
    prefix, _, rest = id.partition("_")
    return f"{prefix}_…{rest[-8:]}" if len(rest) > 12 else id


def linked(id: str | None) -> Markup:
    """An id that leads to the page of what it names, if there is one."""
    if id is None:
        return Markup("–")
    page = _PAGES.get(id.partition("_")[0])
    if page is None:
        return Markup('<code title="{}">{}</code>').format(id, short(id))
    return Markup('<a class="id" href="/ui/{}/{}" title="{}">{}</a>').format(page, id, id, short(id))


def data(value: Any) -> Markup:
    """Data, laid out to be read; a long one is cut, and says so."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    cut = len(text) - LONGEST_DATA
    more = Markup('<p class="dim">{} more characters; the API has all of it.</p>').format(f"{cut:,}") if cut > 0 else ""
    return Markup('<pre class="data" tabindex="0">{}</pre>{}').format(text[:LONGEST_DATA], more)


def percent(part: float | None) -> str:
    """A share of a whole.

    >>> percent(0.987), percent(None)
    ('98.7 %', '–')
    """
    return "–" if part is None else f"{part:.1%}".replace("%", " %").replace(".0 ", " ")


def many(count: int) -> str:
    """A number.

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
    "size": words.size,
    "took": words.took,
    "when": when,
}
"""By the names that templates use."""

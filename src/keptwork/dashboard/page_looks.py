"""Format values for pages: states, times, amounts, IDs, and data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from markupsafe import Markup

from keptwork.core import durations_words
from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import LIFECYCLES, Lifecycle, Verb
from keptwork.core.money import dollars

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
    shown = durations_words.ago(us, time.time_ns() // 1_000)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(rfc3339(us), durations_words.moment(us), shown)


def between(begun: str | int | None, ended: str | int | None) -> str:
    """Return how long something took, or has taken so far.

    >>> between(1_000_000, 2_500_000), between(None, None)
    ('1.5 s', '–')
    """
    if begun is None:
        return "–"
    return durations_words.took((time.time_ns() // 1_000 if ended is None else _us(ended)) - _us(begun))


def seconds(value: float | None) -> str:
    """Return a duration in seconds as text."""
    return durations_words.took(None if value is None else value * 1_000_000)


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
    "size": durations_words.size,
    "took": durations_words.took,
    "when": when,
}
"""The filters by their names in templates."""

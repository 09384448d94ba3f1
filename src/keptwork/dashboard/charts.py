"""Draw small charts as SVG, from figures only: text of users and tools never gets here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from keptwork.core import durations
from keptwork.core.durations import moment
from keptwork.core.lifecycles import JOB
from keptwork.core.lifecycles.job import ASSIGNED, QUEUED, RUNNING
from keptwork.dashboard.page import tones
from keptwork.diagnostics.overview import MINUTES, Minute
from keptwork.store import Event

SLOT, GAP, HEIGHT = 10, 2, 64
"""The width of a minute, the gap within that width, and the height of the highest bar."""

_CHART = Markup(
    '<svg class="minutes" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{label}">'
    '<line x1="0" x2="{width}" y1="{height}" y2="{height}"/>{bars}</svg>'
)
_BAR = Markup("<g><title>{said}</title>{parts}</g>")
_PART = Markup('<rect class="{tone}" x="{x}" y="{y}" width="{width}" height="{high}"/>')


def minutes(found: Sequence[Minute]) -> Markup:
    """Return a chart of finished jobs, a bar per minute of the last hour, with failed jobs on top.

    The newest minute is at the right. Unknown minutes stay empty.
    """
    width, most = MINUTES * SLOT, peak(found)
    first = MINUTES - len(found)
    drawn = [_bar(one, (first + place) * SLOT, most) for place, one in enumerate(found) if one.ended]
    return _CHART.format(width=width, height=HEIGHT, label=label(found), bars=Markup("").join(drawn))


def label(found: Sequence[Minute]) -> str:
    """Return the chart as text.

    >>> label([Minute(0, 3, 3, 1), Minute(60, 0, 1, 0)])
    '4 jobs ended in the last 2 minutes, 1 of them failed; at most 3 in a minute'
    """
    ended, failed = sum(one.ended for one in found), sum(one.failed for one in found)
    return f"{ended:,} jobs ended in {span(found)}, {failed:,} of them failed; at most {peak(found):,} in a minute"


def peak(found: Sequence[Minute]) -> int:
    """Return the number of finished jobs in the busiest minute."""
    return max((one.ended for one in found), default=0)


def span(found: Sequence[Minute]) -> str:
    """Return the period of a chart as text.

    >>> span([Minute(0, 0, 0, 0)] * 60), span([Minute(0, 0, 0, 0)])
    ('the last hour', 'the last minute')
    """
    if len(found) == MINUTES:
        return "the last hour"
    return f"the last {len(found)} minutes" if len(found) > 1 else "the last minute"


def _bar(minute: Minute, x: int, most: int) -> Markup:
    whole, failed = _high(minute.ended, most), _high(minute.failed, most)
    parts = [("bad", HEIGHT - whole, failed), ("good", HEIGHT - whole + failed, whole - failed)]
    said = f"{moment(minute.at)[11:16]} UTC: {minute.ended:,} ended, {minute.failed:,} failed"
    drawn = (_PART.format(tone=tone, x=x, y=y, width=SLOT - GAP, high=high) for tone, y, high in parts if high)
    return _BAR.format(said=said, parts=Markup("").join(drawn))


def _high(part: int, most: int) -> int:
    """Return a height in whole units. Every nonzero part has some height."""
    return max(2, round(HEIGHT * part / most)) if part else 0


# The history of a job as bars on a time axis: queued, claimed, and running, one row per round.
#
# A round starts each time the job is queued. Positions are percentages of the axis, so that a drawing can have any
# width. This module neither reads nor draws.


MOST_ROUNDS = 40
MOST_TICKS = 5
THINNEST = 0.4
"""Minimum width of a bar in percent, so that the pointer can reach a very short state."""

LONGEST_REASON = 90
TOP, LINE = 4, 36
"""The top of the first row, and the distance between rows, in pixels."""

_SECOND = 1_000_000
_STEPS_US = (
    *(digit * 10**power for power in range(7) for digit in (1, 2, 5)),
    *(s * _SECOND for s in (10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)),
    *(days * 86_400 * _SECOND for days in (1, 2, 7, 14, 30, 90, 365, 1_825, 7_300, 36_500)),
)
_TRIED_AGAIN = ("retry", "expire")


class Bar(NamedTuple):
    """A period in a state: its position on the axis, the class that colors it, and its tooltip."""

    x: float
    width: float
    look: str
    says: str


class Round(NamedTuple):
    """The time from one queueing of a job to the next, or to its end."""

    y: int
    says: str
    bars: list[Bar]


class Tick(NamedTuple):
    """A mark on the axis."""

    x: float
    says: str
    anchor: str


class Timeline(NamedTuple):
    """The timeline: its rounds, marks, height, start time, and the number of earlier rounds that are not shown."""

    rounds: list[Round]
    ticks: list[Tick]
    height: int
    begins: int
    earlier: int


class _Stay(NamedTuple):
    event: Event
    then: Event | None
    until: int


def timeline(events: Sequence[Event], now: int) -> Timeline | None:
    """Return the timeline of a job from its events, oldest first, or None without events."""
    rounds = _rounds(events, now)
    if not rounds:
        return None
    shown = rounds[-MOST_ROUNDS:]
    stays = [stay for one in shown for stay in one]
    begins = min(stay.event.ts for stay in stays)
    length = max(1, max(stay.until for stay in stays) - begins)
    first = len(rounds) - len(shown) + 1
    drawn = [_round(place, first + place, one, begins, length) for place, one in enumerate(shown)]
    return Timeline(drawn, _ticks(length), TOP + LINE * len(drawn), begins, len(rounds) - len(shown))


def _rounds(events: Sequence[Event], now: int) -> list[list[_Stay]]:
    """Return every period in a state, a list for each round. The last period continues unless the job has finished."""
    found: list[list[_Stay]] = []
    for event, then in pairwise([*events, None]):
        assert event is not None  # noqa: S101 - only the last item is None, and it is never the first of a pair
        if event.to_state == QUEUED.name or not found:
            found.append([])
        ended = then is None and JOB.state(event.to_state).final
        until = event.ts if ended else now if then is None else then.ts
        found[-1].append(_Stay(event, then, max(event.ts, until)))
    return found


def _round(place: int, number: int, stays: Sequence[_Stay], begins: int, length: int) -> Round:
    bars = [_stay_bar(stay, begins, length) for stay in stays if _is_drawn(stay)]
    return Round(TOP + LINE * place, f"{number} · {_outcome(stays[-1])}", bars)


def _is_drawn(stay: _Stay) -> bool:
    """Return whether to draw a period. Final states have no duration, and most claims start immediately."""
    return not JOB.state(stay.event.to_state).final and (stay.then is None or stay.until > stay.event.ts)


def _outcome(last: _Stay) -> str:
    """Return the outcome of a round, or its present state."""
    told = last.event if last.then is None else last.then
    said = told.to_state.replace("_", " ") if last.then is None else told.trigger.replace("_", " ")
    return f"{said}: {_short(told.reason)}" if told.reason else said


def _stay_bar(stay: _Stay, begins: int, length: int) -> Bar:
    width = max(THINNEST, 100 * (stay.until - stay.event.ts) / length)
    x = min(100 * (stay.event.ts - begins) / length, 100 - width)
    return Bar(round(x, 3), round(width, 3), _look(stay), _says(stay))


def _look(stay: _Stay) -> str:
    """Return the class of a bar: queued and claimed by their state, running by its outcome."""
    if stay.event.to_state != RUNNING.name:
        return {QUEUED.name: "waiting", ASSIGNED.name: "taken"}[stay.event.to_state]
    if stay.then is None:
        return "busy"
    ending = stay.then
    if JOB.state(ending.to_state).final:
        return tones(JOB)[ending.to_state]
    return "bad" if ending.trigger in _TRIED_AGAIN else "gone"


def _says(stay: _Stay) -> str:
    state, took = stay.event.to_state, durations.took(stay.until - stay.event.ts)
    begun = durations.moment(stay.event.ts)
    if stay.then is None:
        return f"{state} for {took} so far, since {begun}"
    why = f" ({_short(stay.then.reason)})" if stay.then.reason else ""
    return f"{state} for {took}, from {begun}; then {stay.then.trigger}{why}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"


def _ticks(length: int) -> list[Tick]:
    """Return a few marks at round times after the start.

    >>> [tick.says for tick in _ticks(12_000_000)]
    ['0', '5.0 s', '10.0 s']
    """
    step = next((one for one in _STEPS_US if length <= MOST_TICKS * one), length)
    return [_tick(at, length) for at in range(0, length + 1, step)]


def _tick(at: int, length: int) -> Tick:
    x = 100 * at / length
    anchor = "start" if x < 8 else "end" if x > 92 else "middle"
    return Tick(round(x, 3), durations.took(at) if at else "0", anchor)

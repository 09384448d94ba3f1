"""Draw small charts as SVG, from figures only: text of users and tools never gets here."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from keptwork.core.durations_words import moment
from keptwork.diagnostics.overview_throughput import MINUTES, Minute

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

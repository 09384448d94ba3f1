"""Convert times and durations to and from text. Internally, both are integer microseconds, times since 1970 in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from keptwork.errors import BadInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_UNITS_US = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"([0-9]+)(ms|[smhdw])")
_SPAN = re.compile(rf"(?:{_PART.pattern})+")
LONGEST_US = 100 * 365 * _UNITS_US["d"]


def rfc3339(us: int) -> str:
    """Return a time as text, to the microsecond.

    >>> rfc3339(1_794_762_620_123_456)
    '2026-11-15T17:10:20.123456Z'
    """
    seconds, rest = divmod(us, 1_000_000)
    try:
        return f"{_to_the_second(seconds)}.{rest:06}Z"
    except OverflowError:
        return f"{us} µs after 1970"  # not a valid time, but an event log that was tampered with can contain it


@lru_cache(maxsize=1_000)
def _to_the_second(seconds: int) -> str:
    """Return a time to the second. Cached, because times shown together often share their second, and formatting is
    slow."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat().removesuffix("+00:00")


Span = str | int | float | timedelta
"""A duration: a string such as "90s" or "1h30m", a number of seconds, or a timedelta."""


def span_us(span: Span) -> int:
    """Return the duration in microseconds.

    >>> span_us("10m"), span_us("1h30m"), span_us("250ms"), span_us(1.5)
    (600000000, 5400000000, 250000, 1500000)
    """
    if isinstance(span, str):
        return _parsed(span)
    length = span // _MICROSECOND if isinstance(span, timedelta) else round(span * 1_000_000)
    if not 0 <= length <= LONGEST_US:
        raise BadInput(what=f"{span!r} is no duration; it must be between 0 and a hundred years")
    return length


def _parsed(text: str) -> int:
    if not _SPAN.fullmatch(text):
        raise BadInput(what=f"{text!r} is no duration; write one like 30s, 10m, 1h30m or 7d")
    total = sum(int(number) * _UNITS_US[unit] for number, unit in _PART.findall(text))
    if total > LONGEST_US:
        raise BadInput(what=f"{text!r} is longer than a hundred years; write a duration like 30s, 10m, 1h30m or 7d")
    return total


def moment_us(text: str, now_us: int) -> int:
    """Return a time in microseconds, given as a time or as a duration before now.

    A time without a zone is in UTC.

    >>> moment_us("2026-11-15T17:10:20Z", 0), moment_us("10m", 700_000_000)
    (1794762620000000, 100000000)
    """
    if _SPAN.fullmatch(text):
        return now_us - span_us(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            what=f"{text!r} is neither a time nor a duration; write 2026-11-15T17:10:20Z, or 10m for ten minutes ago"
        ) from None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND

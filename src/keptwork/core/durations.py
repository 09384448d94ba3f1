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


# Convert amounts of memory between text and bytes.


_UNITS_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,12})(kB|KB|MB|GB|KiB|MiB|GiB)")

Size = str | int
"""An amount of memory: a string such as "512MB" or "1GiB", or a number of bytes."""


def size_bytes(size: Size) -> int:
    """Return the number of bytes.

    >>> size_bytes("512MB"), size_bytes("1GiB"), size_bytes(1000)
    (512000000, 1073741824, 1000)
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None:
        raise BadInput(what=f"{size!r} is no amount of memory; write one like 512MB or 1GiB, or a number of bytes")
    return int(found[1]) * _UNITS_BYTES[found[2].replace("KB", "kB")]


def size_text(size: int) -> str:
    """Return the shortest exact text, or the rounded number of megabytes.

    >>> size_text(512_000_000), size_text(1 << 30), size_text(123_456_789)
    ('512 MB', '1 GiB', '123.5 MB')
    """
    whole = [(size // unit, name) for name, unit in _UNITS_BYTES.items() if size >= unit and size % unit == 0]
    return "{} {}".format(*min(whole)) if whole else f"{size / 10**6:.1f} MB"


# Format times, durations, and sizes for display.


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def moment(us: int | None) -> str:
    """Return microseconds since the epoch as a time in UTC, to the millisecond.

    >>> moment(1_794_762_620_123_456)
    '2026-11-15 17:10:20.123Z'
    >>> moment(None)
    '–'
    """
    if us is None:
        return "–"
    return (_EPOCH + timedelta(microseconds=us)).isoformat(" ", "milliseconds").replace("+00:00", "Z")


def ago(us: int | None, now_us: int) -> str:
    """Return how long ago a time was, in its largest whole unit, or how far ahead it is, rounded.

    >>> ago(0, 90_000_000), ago(7_200_000_000, 0), ago(5, 9), ago(90 * 86_400_000_000, 1_000_000)
    ('1 min ago', 'in 2 h', 'now', 'in 90 d')
    """
    if us is None:
        return "–"
    if abs(now_us - us) < 1_000_000:
        return "now"
    return f"{span(now_us - us)} ago" if us <= now_us else f"in {ahead(us - now_us)}"


def ahead(us: int) -> str:
    """Return the approximate remaining time.

    >>> ahead(3_599_000_000), ahead(90_000_000), ahead(1_000)
    ('60 min', '2 min', 'under 1 s')
    """
    seconds = us / 1_000_000
    return next((f"{round(seconds / size)} {unit}" for size, unit in _UNITS if seconds >= size), "under 1 s")


def span(us: int) -> str:
    """Return a duration in its largest whole unit.

    >>> span(90_000_000), span(7_200_000_000), span(1_000), span(-5)
    ('1 min', '2 h', 'under 1 s', 'under 1 s')
    """
    seconds = us // 1_000_000
    return next((f"{seconds // size} {unit}" for size, unit in _UNITS if seconds >= size), "under 1 s")


def took(us: float | None) -> str:
    """Return an elapsed time with few digits.

    >>> took(640), took(2_345), took(1_420_000), took(250_000_000), took(11_100_000_000), took(None)
    ('640 µs', '2.3 ms', '1.4 s', '4m 10s', '3h 5m', '–')
    """
    if us is None:
        return "–"
    for size, unit in ((1, "µs"), (1_000, "ms"), (1_000_000, "s")):
        if us < size * (60 if unit == "s" else 1_000):
            return f"{us / size:.{1 if unit != 'µs' and us < size * 100 else 0}f} {unit}"
    minutes, seconds = divmod(round(us / 1_000_000), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{n}{unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")) if n]
    return " ".join(parts[:2])


def size(count: int) -> str:
    """Return a size for display.

    >>> size(0), size(1023), size(2048), size(5_000_000)
    ('0 bytes', '1,023 bytes', '2.0 KiB', '4.8 MiB')
    """
    if count < 1 << 10:
        return f"{count:,} bytes"
    return f"{count / (1 << 20):,.1f} MiB" if count >= 1 << 20 else f"{count / (1 << 10):.1f} KiB"

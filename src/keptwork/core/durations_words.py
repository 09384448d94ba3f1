"""Format times, durations, and sizes for display."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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

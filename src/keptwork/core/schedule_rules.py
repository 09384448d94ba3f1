"""Compute the ticks of schedules, and which ticks are due. Pure: the time is passed in.

A rule is a cron expression in a time zone, or an interval. Ticks are times (µs), equal on every host. The ticks of a
cron expression are the times at which its fields match. The ticks of an interval are its multiples since 1970. Local
times that a clock change skips or repeats are treated as in Debian's cron, which `cronsim` implements:

- An expression whose minute or hour starts with `*` follows elapsed time. It runs twice in a repeated hour, and
  not at all in a skipped hour.
- Any other expression runs once: in the first of two equal hours, or in the first minute after a skipped time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, takewhile
from typing import Literal, NamedTuple, get_args

from keptwork.core.durations import Span, rfc3339, span_us
from keptwork.errors import BadInput

CatchUp = Literal["latest", "all", "none"]
"""Which missed ticks to fire: the last one, all (the newest 1,000), or none."""

MOST_MISSED = 1_000
LATE_US = 60_000_000
SHORTEST_US = 1_000_000
LONGEST_EXPRESSION = 200
PREFIX = "schedule:"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_REPEATED = timedelta(hours=3)  # more than any zone ever set its clocks back
_LAST_YEAR = 9000
_DAILY = 5  # fields; an expression with six, including seconds, follows elapsed time


@dataclass(frozen=True, slots=True)
class Rule:
    """A cron expression with its time zone, or an interval.

    >>> rule = Rule.of(cron="0 9 * * mon", tz="Europe/Berlin")
    >>> rfc3339(next_tick(rule, 1_794_762_620_000_000))
    '2026-11-16T08:00:00.000000Z'
    """

    cron: str | None
    every_us: int | None
    tz: str = "UTC"

    @classmethod
    def of(cls, cron: str | None = None, every: Span | None = None, tz: str = "UTC") -> Rule:
        """Return a rule that has ticks. Raise `BadInput` with the reason for any other."""
        if (cron is None) == (every is None):
            raise BadInput(what="a schedule goes by a cron expression or by an interval: give one of cron and every")
        zone(tz)
        rule = cls(None if cron is None else _checked(cron), None if every is None else _interval(every), tz)
        if rule.cron is not None and next(_forward(rule, _EPOCH), None) is None:
            raise BadInput(what=f"cron {cron!r} never comes: there is no such day within fifty years")
        return rule

    @property
    def runs_once(self) -> bool:
        """Whether a repeated or skipped local time is one tick. Otherwise the rule follows elapsed time."""
        fields = (self.cron or "*").split()
        return len(fields) == _DAILY and not fields[0].startswith("*") and not fields[1].startswith("*")


class Firing(NamedTuple):
    """The ticks to fire now, oldest first, and the next time at which the rule is due."""

    ticks: list[int]
    next_at: int


@lru_cache(maxsize=256)
def zone(name: str) -> tzinfo:
    """Return a time zone by name. Raise `BadInput` for an unknown one. UTC needs no time zone database."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        known = available_timezones()
        hint = "a name like Europe/Berlin" if known else "UTC, or install the package tzdata: there are none here"
        raise BadInput(what=f"{name!r} is no time zone; say {hint}") from None


def next_tick(rule: Rule, after: int) -> int:
    """Return the first tick after a time."""
    if rule.every_us is not None:
        return (after // rule.every_us + 1) * rule.every_us
    tick = next((tick for tick in map(_us, _forward(rule, _moment(after))) if tick > after), None)
    if tick is None:
        raise BadInput(what=f"cron {rule.cron!r} has no tick after {rfc3339(after)}")
    return tick


def next_ticks(rule: Rule, after: int, count: int) -> list[int]:
    """Return the first ticks after a time."""
    ticks: list[int] = []
    for _ in range(count):
        ticks.append(next_tick(rule, ticks[-1] if ticks else after))
    return ticks


def last_ticks(rule: Rule, since: int, upto: int, most: int) -> list[int]:
    """Return the newest ticks between two times, inclusive, oldest first.

    The cost does not depend on the number of earlier ticks.
    """
    return list(islice(takewhile(lambda tick: tick >= since, _backward(rule, upto)), most))[::-1]


def due(rule: Rule, catch_up: CatchUp, next_at: int, last_at: int | None, now: int) -> Firing:
    """Return the ticks to fire, given the first unfired tick and the last fired one.

    The first unfired tick was announced, so it counts even if the rules of the time zone have changed since.
    """
    fired = -1 if last_at is None else last_at
    most = MOST_MISSED if catch_up == "all" else 1
    missed = sorted({next_at, *last_ticks(rule, next_at, now, most)})[-most:]
    longest = LATE_US if catch_up == "none" else now
    return Firing([tick for tick in missed if tick > fired and now - tick <= longest], next_tick(rule, now))


def check_catch_up(text: str) -> CatchUp:
    """Return the value if it is valid. Raise `BadInput` otherwise."""
    for known in get_args(CatchUp):
        if text == known:
            return text  # type: ignore[return-value]  # it is one of them
    raise BadInput(what=f"catch_up is {text!r}; say 'latest', 'all' or 'none'")


def correlation(name: str, tick: int) -> str:
    """Return the correlation ID of a scheduled job, which names the tick of its schedule."""
    return f"{PREFIX}{name}@{rfc3339(tick)}"


def tick_of(correlation_id: str | None) -> datetime | None:
    """Return the tick that such a correlation ID names, or None.

    >>> tick_of(correlation("report", 1_794_762_620_000_000))
    datetime.datetime(2026, 11, 15, 17, 10, 20, tzinfo=datetime.timezone.utc)
    """
    if correlation_id is None or not correlation_id.startswith(PREFIX):
        return None
    try:
        return datetime.fromisoformat(correlation_id.rpartition("@")[2])
    except ValueError:
        return None


def _interval(every: Span) -> int:
    length = span_us(every)
    if length < SHORTEST_US:
        raise BadInput(what=f"every {every!r} is too short; a schedule has at most one tick a second")
    return length


def _checked(cron: str) -> str:
    from cronsim import CronSim, CronSimError

    text = " ".join(cron.split())
    if len(text) > LONGEST_EXPRESSION:
        raise BadInput(what=f"a cron expression of {len(text):,} characters is over the limit of {LONGEST_EXPRESSION}")
    try:
        CronSim(text, _EPOCH)
    except (CronSimError, ValueError, AssertionError, RecursionError) as error:
        fault = _fault(text, str(error))
        raise BadInput(what=f"cron {cron!r}: {fault}; write minute hour day month weekday, like 0 9 * * mon") from None
    return text


def _fault(text: str, said: str) -> str:
    fields = text.split()
    if len(fields) not in (5, 6):
        return f"it has {len(fields)} fields, not 5 (or 6, with seconds first)"
    names = ["second", "minute", "hour", "day-of-month", "month", "day-of-week"][6 - len(fields) :]
    wrong = next((value for name, value in zip(names, fields, strict=True) if said.endswith(f" {name}")), None)
    return f"{said[:1].lower()}{said[1:]}" + (f" {wrong!r}" if wrong else "") if said else "it cannot be read"


def _forward(rule: Rule, start: datetime) -> Iterator[datetime]:
    from cronsim import CronSim

    if start.year < _LAST_YEAR:
        yield from CronSim(rule.cron or "", start.astimezone(zone(rule.tz)))


def _backward(rule: Rule, upto: int) -> Iterator[int]:
    """Yield the ticks backward in time, in strict order. Before a repeated hour, `cronsim` does not know of it, so the
    search starts behind one."""
    if rule.every_us is not None:
        yield from range(upto // rule.every_us * rule.every_us, -1, -rule.every_us)
        return
    from cronsim import CronSim

    last, start = upto + 1, _moment(upto) + (_REPEATED if rule.runs_once else timedelta())
    for moment in CronSim(rule.cron or "", _beyond(start).astimezone(zone(rule.tz)), reverse=True):
        tick = _us(moment)
        if tick < last:
            last = tick
            yield tick


def _beyond(moment: datetime) -> datetime:
    """Return a time slightly later in the same second, so that the second itself comes first."""
    return moment if moment.microsecond else moment + _MICROSECOND


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _us(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND

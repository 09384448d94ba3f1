"""Concurrency and rate limits of jobs, from `limit=`, `rate=`, and `per=`.

Jobs that are counted together have the same key: PER:KIND or PER:KIND:VALUE. The database creates the same keys for
jobs that are enqueued by SQL.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keptwork.core.durations import span_us
from keptwork.core.validation import LARGEST_INT
from keptwork.errors import BadInput

ALL, TENANT = "*", "tenant"
LONGEST_VALUE = 64
_RATE = re.compile(r"\s*([0-9]+)\s*(?:/|per)\s*([0-9a-z]+)\s*")
_WINDOWS = {
    "ms": "1ms",
    "s": "1s",
    "sec": "1s",
    "m": "1m",
    "min": "1m",
    "h": "1h",
    "hour": "1h",
    "d": "1d",
    "day": "1d",
}


@dataclass(frozen=True, slots=True)
class Throttle:
    """A maximum number of concurrent jobs, and a maximum number of starts in any window.

    Both are counted for all jobs of a kind (*), for each tenant, or for each value of an argument within a tenant.
    """

    most: int | None = None
    rate: int | None = None
    window_us: int | None = None
    per: str = ALL

    @classmethod
    def of(cls, limit: int | None, rate: str | None, per: str = ALL) -> Throttle | None:
        """Return the limit, or None if the arguments limit nothing."""
        if limit is None and rate is None:
            return None
        if limit is not None and (type(limit) is not int or not 1 <= limit <= LARGEST_INT):
            raise BadInput(what=f"a limit is {limit!r}; it must be a whole number, at least 1")
        starts, window_us = (None, None) if rate is None else starts_in(rate)
        return cls(limit, starts, window_us, per)

    def key(self, kind: str, arguments: Mapping[str, Any]) -> str:
        """Return the key under which a job of this kind with these arguments is counted."""
        if self.per in (ALL, TENANT):
            return f"{self.per}:{kind}"
        return f"{self.per}:{kind}:{_short(kind, self.per, arguments.get(self.per))}"


def starts_in(rate: str) -> tuple[int, int]:
    """Return the number of starts and the length of their window.

    >>> starts_in("100/min"), starts_in("10/s"), starts_in("100 per 90s")
    ((100, 60000000), (10, 1000000), (100, 90000000))
    """
    match = _RATE.fullmatch(str(rate))
    if match is None or not 1 <= int(match[1]) <= LARGEST_INT:
        raise BadInput(what=f"{rate!r} is no rate; write one like 100/min, 10/s or 100 per 90s")
    try:
        window_us = span_us(_WINDOWS.get(match[2], match[2]))
    except BadInput:
        window_us = 0
    if not window_us:
        raise BadInput(what=f"{rate!r} is no rate; write one like 100/min, 10/s or 100 per 90s")
    return int(match[1]), window_us


def _short(kind: str, argument: str, value: Any) -> str:
    if isinstance(value, list | dict | tuple | float):
        raise BadInput(
            what=f"job {kind}: it is limited per {argument}, which must be text, a whole number or a truth value"
        )
    text = value if isinstance(value, str) else json.dumps(value)
    return hashlib.sha256(text.encode()).hexdigest() if len(text) > LONGEST_VALUE else text

"""Decide whether a request is retried, and after which delay.

Only a request that is safe to repeat is retried: reads, and changes with an idempotency key. This module does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from keptwork.errors import RequestInFlight

PASSING = frozenset({429, 502, 503, 504})
"""Status codes of temporary errors, from a server or a proxy in front of it."""

MOST_TRIES = 30


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts and retries of a client. Times are in seconds."""

    connect_seconds: float = 10.0
    read_seconds: float = 60.0
    tries: int = 6
    first_pause: float = 0.2
    longest_pause: float = 5.0
    longest_asked: float = 60.0
    """A longer `Retry-After` is not waited for."""

    def pause(self, tried: int, random: Callable[[], float], asked: float | None = None) -> float | None:
        """Return the delay after this many attempts, or None to give up.

        The delay is at least `asked`, which the server requested. It is jittered, so that clients do not all retry at
        the same time.

        >>> Patience().pause(3, lambda: 1.0), Patience().pause(1, lambda: 0.0, asked=2.0)
        (0.8, 2.0)
        >>> Patience().pause(6, lambda: 1.0) is Patience().pause(1, lambda: 1.0, asked=3600.0) is None
        True
        """
        if tried >= min(self.tries, MOST_TRIES) or (asked or 0.0) > self.longest_asked:
            return None
        longest = min(self.first_pause * float(1 << (tried - 1)), self.longest_pause)
        return longest * (0.5 + random() / 2) if asked is None else asked + longest * random() / 4


def passes(status: int, problem: str | None) -> bool:
    """Return whether an error is temporary. `problem` is the type of its problem document.

    >>> passes(503, None), passes(409, "urn:keptwork:problem:request-in-flight"), passes(409, None), passes(500, None)
    (True, True, False, False)
    """
    return status in PASSING or problem == RequestInFlight.problem()


def asked_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`, or None. Dates, which Keptwork servers do not send, are ignored.

    >>> asked_seconds({"retry-after": "2"}), asked_seconds({"retry-after": "Mon, 16 Nov 2026 09:00:00 GMT"})
    (2.0, None)
    """
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None

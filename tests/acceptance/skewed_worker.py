"""The worker program under a wall clock that is wrong.

Usage: python -m tests.acceptance.skewed_worker SECONDS URL SINK_PORT NAME LEASE [TWIN]. The clock is shifted inside
Python, before anything of the product is imported: `time.time`, `time.time_ns`, `time.clock_gettime` and `datetime`.
Monotonic time is left as it is, as a wrong wall clock leaves it. (libfaketime would shift what C libraries read as
well, but is not to be had everywhere; nothing of the product asks a C library for the time.)
"""

from __future__ import annotations

import datetime
import sys
import time


def shift(seconds: int) -> None:
    """From now on this process's wall clock is wrong by so much."""
    right, right_ns, right_clock = time.time, time.time_ns, time.clock_gettime
    realtime = time.CLOCK_REALTIME

    class Wrong(datetime.datetime):
        __slots__ = ()  # of the same size as the right one, which C code looks at

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Wrong:
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Wrong:
            return cls.now(datetime.UTC).replace(tzinfo=None)

    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + seconds * 1_000_000_000
    time.clock_gettime = lambda which: right_clock(which) + (seconds if which == realtime else 0)
    datetime.datetime = Wrong  # type: ignore[misc]  # that is what a wrong clock is


if __name__ == "__main__":
    shift(int(sys.argv[1]))
    from tests.acceptance.worker_program import main

    main(*sys.argv[2:])

"""Throughput: jobs enqueued and ended in the last minute, and per minute of the last hour.

The database counts the log minute by minute. Finished minutes are cached in this process, because they no longer
change. A repeated read therefore counts two minutes, however long the log is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import JOB, Verb
from keptwork.store import Reader, Store
from keptwork.store.counters import Tally

MINUTE_US = 60_000_000
MINUTES = 60
MOST_MOVES = 20_000
"""Maximum moves that one read counts. Further minutes are left to the next read."""

REST = 20
"""Pause after a read, in multiples of its duration, so that a busy log is counted rarely."""

MOST_TENANTS = 1_000

_ENDS = frozenset(move.trigger for move in JOB.moves if move.target.final)
_FAILS = frozenset(move.trigger for move in JOB.moves if move.verb in (Verb.FAIL, Verb.DEAD_LETTER))


class Minute(NamedTuple):
    """The jobs enqueued, ended, and failed in a minute, which starts at `at`."""

    at: int
    enqueued: int
    ended: int
    failed: int

    @classmethod
    def of(cls, at: int, moves: dict[str, int]) -> Minute:
        """Return the minute with these moves of jobs.

        >>> Minute.of(0, {"enqueue": 3, "claim": 3, "succeed": 2, "dead_letter": 1})
        Minute(at=0, enqueued=3, ended=3, failed=1)
        """
        ended, failed = (sum(moves.get(trigger, 0) for trigger in among) for among in (_ENDS, _FAILS))
        return cls(at, moves.get(JOB.creation.trigger, 0), ended, failed)


class Throughput(NamedTuple):
    """The last 60 s, and the minutes of the last hour, oldest first.

    The last minute is incomplete. In a busy log, the first reads return fewer minutes.
    """

    last_minute: Minute
    minutes: list[Minute]

    @property
    def per_second(self) -> float:
        """Jobs that ended per second, in the last minute."""
        return self.last_minute.ended / (MINUTE_US / 1_000_000)


@dataclass(slots=True)
class _Known:
    """The cached minutes of a tenant by number, and the time of its next count."""

    minutes: dict[int, Minute] = field(default_factory=dict)
    told: Throughput | None = None
    rests_until: float = 0.0


_known: WeakKeyDictionary[Tally, dict[int, _Known]] = WeakKeyDictionary()
"""Per open database."""


async def read_throughput(store: Store, tenant_id: int, clock: Callable[[], float] = time.monotonic) -> Throughput:
    """Return the throughput of a tenant."""
    tenants = _known.setdefault(store.tally, {})
    if len(tenants) >= MOST_TENANTS and tenant_id not in tenants:
        tenants.clear()
    known = tenants.setdefault(tenant_id, _Known())
    begun = clock()
    if known.told is None or begun >= known.rests_until:
        async with store.snapshot() as moment:
            known.told = await _counted(moment, tenant_id, known.minutes)
        ended = clock()
        known.rests_until = ended + REST * (ended - begun)
    return known.told


async def _counted(moment: Reader, tenant_id: int, known: dict[int, Minute]) -> Throughput:
    now, moves = await moment.now(), 0
    current = now // MINUTE_US
    for number in set(known) - set(range(current - MINUTES + 1, current + 1)):
        del known[number]
    minutes: list[Minute] = []
    for number in range(current, current - MINUTES, -1):
        # A move can be committed a little after its time, so a minute is complete only when the next one has ended.
        over = number < current - 1
        if over and number not in known and moves > MOST_MOVES:
            break
        found = known.get(number)
        if found is None:
            found, counted = await _minute(moment, tenant_id, number)
            moves += counted
        if over:
            known[number] = found
        minutes.append(found)
    lately = await moment.job_moves_since(tenant_id, now - MINUTE_US)
    return Throughput(Minute.of(now - MINUTE_US, lately), minutes[::-1])


async def _minute(moment: Reader, tenant_id: int, number: int) -> tuple[Minute, int]:
    """Return the minute with this number, and the number of its moves."""
    at = number * MINUTE_US
    found = await moment.job_moves_since(tenant_id, at, at + MINUTE_US)
    return Minute.of(at, found), sum(found.values())


def throughput_json(found: Throughput) -> dict[str, Any]:
    """Return throughput in its public form."""
    return {"last_minute": _shown(found.last_minute), "minutes": [_shown(one) for one in found.minutes]}


def _shown(minute: Minute) -> dict[str, Any]:
    return {**minute._asdict(), "at": rfc3339(minute.at)}

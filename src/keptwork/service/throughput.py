"""How many jobs came and went lately: over the last minute, and minute by minute over the last hour.

The database counts the log, a minute at a time; what was counted is kept in this process, for what is over does not
change. So whoever looks again and again has two minutes counted each time, whatever else the log holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from keptwork.lifecycle import JOB, Verb
from keptwork.moments import rfc3339
from keptwork.store import Reader, Store
from keptwork.store.tally import Tally

MINUTE_US = 60_000_000
MINUTES = 60
MOST_MOVES = 20_000
"""Once so many were counted in one look, further minutes are left to the next."""

REST = 20
"""After a look there is a rest of so many times what it took, so that a busy log is not counted all the time."""

MOST_TENANTS = 1_000

_ENDS = frozenset(move.trigger for move in JOB.moves if move.target.final)
_FAILS = frozenset(move.trigger for move in JOB.moves if move.verb in (Verb.FAIL, Verb.DEAD_LETTER))


class Minute(NamedTuple):
    """How many jobs came in a minute, how many ended, and how many of those had failed; `at` is when it began."""

    at: int
    enqueued: int
    ended: int
    failed: int

    @classmethod
    def of(cls, at: int, moves: dict[str, int]) -> Minute:
        """From the moves that jobs have made in it.

        >>> Minute.of(0, {"enqueue": 3, "claim": 3, "succeed": 2, "dead_letter": 1})
        Minute(at=0, enqueued=3, ended=3, failed=1)
        """
        ended, failed = (sum(moves.get(trigger, 0) for trigger in among) for among in (_ENDS, _FAILS))
        return cls(at, moves.get(JOB.creation.trigger, 0), ended, failed)


class Throughput(NamedTuple):
    """The sixty seconds up to now, and the minutes of the last hour, oldest first; the last of them is not over. Of a
    busy log there are fewer minutes at first, and more at every look."""

    last_minute: Minute
    minutes: list[Minute]

    @property
    def per_second(self) -> float:
        """How many jobs ended in a second."""
        return self.last_minute.ended / (MINUTE_US / 1_000_000)


@dataclass(slots=True)
class _Known:
    """What was counted of a tenant, by the number of the minute; and not before when it is counted again."""

    minutes: dict[int, Minute] = field(default_factory=dict)
    told: Throughput | None = None
    rests_until: float = 0.0


_known: WeakKeyDictionary[Tally, dict[int, _Known]] = WeakKeyDictionary()
"""By what stands for an open database."""


async def read(store: Store, tenant_id: int, clock: Callable[[], float] = time.monotonic) -> Throughput:
    """How many jobs of a tenant came and went lately."""
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
        # A move may be committed a little after its time, so a minute counts as over when the next one is, too.
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
    """The minute of that number, and how many moves there were in it."""
    at = number * MINUTE_US
    found = await moment.job_moves_since(tenant_id, at, at + MINUTE_US)
    return Minute.of(at, found), sum(found.values())


def as_json(found: Throughput) -> dict[str, Any]:
    """As it is read outside."""
    return {"last_minute": _shown(found.last_minute), "minutes": [_shown(one) for one in found.minutes]}


def _shown(minute: Minute) -> dict[str, Any]:
    return {**minute._asdict(), "at": rfc3339(minute.at)}

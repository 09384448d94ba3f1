"""Count the event log into the table `counters`, each event once.

The database groups a part of the log. This module turns the groups into counters and writes them together with the
position in the log, but only if no other process has counted further meanwhile. Concurrent calls can therefore do some
work in vain, but a crash at any time loses no count and counts nothing twice. Reading the log takes no locks.

It runs when metrics are requested, and must run before jobs or events are deleted, because a deleted job has no kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from keptwork.core import metrics
from keptwork.core.guards import DEAD_LETTER_REASONS
from keptwork.core.lifecycles import BREAKER, JOB, LIFECYCLES
from keptwork.core.lifecycles.job import RUNNING
from keptwork.core.metrics import BUCKET, SUM, Metric
from keptwork.store import Store
from keptwork.store.contract.events_digest import MoveCount
from keptwork.store.contract.records import Counter, Progress

READER = "counters"
PAGE = 20_000

UNKNOWN = "unknown"
"""Kind of a job that was deleted before its events were counted."""

OTHER = "other"
"""A reason that is not declared, such as a manual edit."""

_NOTES = {(name, note.trigger) for name, lifecycle in LIFECYCLES.items() for note in lifecycle.notes}


async def roll_up(
    store: Store, *, page: int = PAGE, most: int | None = None, told: Callable[[int], None] = lambda counted: None
) -> int:
    """Count the uncounted events, or at most `most` of them in whole pages.

    Return how many were counted. `told` receives the total after each page.
    """
    total, more = 0, True
    while more and (most is None or total + page <= most):
        start = await store.log_position(READER)
        digest = await store.digest(start, page)
        more = digest.events == page
        if digest.cursor is not None:
            progress = Progress(READER, start, digest.cursor)
            if await store.count(list(counters(digest.moves)), progress=progress):
                total += digest.events
                told(total)
    return total


def counters(moves: list[MoveCount]) -> Iterator[Counter]:
    """Yield the counters of these moves. A note moves nothing and is not counted."""
    for move in moves:
        if (move.entity, move.trigger) not in _NOTES:
            yield from _of_any(move)
            if move.entity == JOB.name:
                yield from _of_job(move, move.kind or UNKNOWN)
            elif move.entity == BREAKER.name and (metric := metrics.BREAKER_MOVES.get(move.trigger)):
                yield Counter(move.tenant_id, metric.name, metric.key(move.kind or UNKNOWN), move.times)


def _of_any(move: MoveCount) -> Iterator[Counter]:
    labels = (move.entity, move.from_state or "", move.to_state, move.trigger)
    yield Counter(move.tenant_id, metrics.TRANSITIONS.name, metrics.TRANSITIONS.key(*labels), move.times)
    if move.lasted is not None and move.from_state is not None:
        yield from _time(metrics.TIME_IN_STATE, move, move.lasted, move.lasted_us, move.entity, move.from_state)


def _of_job(move: MoveCount, kind: str) -> Iterator[Counter]:
    if metric := metrics.JOB_MOVES.get(move.trigger):
        yield Counter(move.tenant_id, metric.name, metric.key(kind), move.times)
    if move.trigger == "dead_letter":
        reason = move.reason if move.reason in DEAD_LETTER_REASONS else OTHER
        yield Counter(move.tenant_id, metrics.DEAD_LETTERS.name, metrics.DEAD_LETTERS.key(kind, reason), move.times)
    if move.from_state == RUNNING.name and move.lasted is not None:
        yield from _time(metrics.RUN_TIME, move, move.lasted, move.lasted_us, kind)
    if move.waited is not None:
        yield from _time(metrics.WAIT_TIME, move, move.waited, move.waited_us, kind)


def _time(metric: Metric, move: MoveCount, bound: int, sum_us: int, *labels: str) -> Iterator[Counter]:
    yield Counter(move.tenant_id, metric.name + BUCKET, metric.bucket_key(bound, *labels), move.times)
    yield Counter(move.tenant_id, metric.name + SUM, metric.key(*labels), sum_us)

"""The audit: verify that the log explains every row, and export the log as text.

Verifying reads a snapshot of the database, entity by entity in pages, so that memory stays bounded for any length of
the log. It rebuilds each entity from its events and compares it with its row. A row can be missing if retention
recorded that it deleted it. An edit of an event's actor, reason, or payload leaves a consistent history; only the seals
of the log detect it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keptwork.audit import seals
from keptwork.audit.events import as_json
from keptwork.audit.seals import Sealed
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.core.replay import Replayed, Ways, advance, ways
from keptwork.errors import Damaged
from keptwork.store.contract.records import Event, EventFilter, Pruned
from keptwork.store.contract.store import Reader, Store

EVENTS_AT_ONCE = 5_000
PROBLEMS_KEPT = 1_000

COMPARED = ("state", "seq", "epoch", "created_at", "updated_at", "started_at", "completed_at")
"""Columns in which a row must match its replayed events."""

_encoded = json.JSONEncoder(ensure_ascii=False).encode

Progress = Callable[[int, int], None]
"""Receives, after each page, the number of events done and the total."""


class Problem(NamedTuple):
    """A contradiction between the log and the database: entity, contradiction, and place."""

    entity: str
    what: str
    where: str


@dataclass(slots=True)
class Verdict:
    """The result of an audit. It counts all problems and stores the first."""

    events: int = 0
    entities: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    sealed: Sealed = field(default_factory=Sealed)

    @property
    def clean(self) -> bool:
        return not self.problem_count

    def add(self, entity: str, what: str, where: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(Problem(entity, what, where))


@dataclass(slots=True)
class Rebuilt:
    """An entity while its events are replayed."""

    entity: str
    key: int
    tenant_id: int
    known: Ways
    so_far: Replayed = field(default_factory=Replayed)
    trigger: str = ""

    @property
    def name(self) -> str:
        return public_id(self.entity, self.key)


class Exported(NamedTuple):
    """The number of exported events, the number left for a later export, and its cursor."""

    events: int
    left: int
    cursor: str | None


async def verify(store: Store, progress: Progress | None = None, *, against: str | None = None) -> Verdict:
    """Replay every event, compare every row, and check every seal, in one snapshot.

    `against` is the hash of a seal that was stored elsewhere. A damaged database ends the audit, and is reported as a
    problem.
    """
    verdict = Verdict()
    try:
        async with store.snapshot() as log:
            for fault in await log.faults():
                verdict.add("–", fault, "database")
            await _Audit(log, verdict, progress).run()
            verdict.sealed = await seals.check(log, verdict.add, against)
    except Damaged as damage:
        verdict.add("–", str(damage), "database")
    except TypeError:
        if verdict.clean:
            raise
        # Damage replaced a number by NULL. The verdict has that problem already, and the rest cannot be read.
    return verdict


async def export(
    store: Store, write: Callable[[str], object], progress: Progress | None = None, *, after: str | None = None
) -> Exported:
    """Write every event as a line of JSON, in the order of commits, from one snapshot.

    On PostgreSQL, the export ends before the oldest transaction that is still open. A later export can therefore
    continue at the cursor without a gap.
    """
    written, cursor = 0, after
    async with store.snapshot() as log:
        total = await log.event_count()
        async for page in pages(log, EventFilter(), after):
            write("".join(f"{_encoded(as_json(event))}\n" for event in page))
            written, cursor = written + len(page), page[-1].cursor
            if progress:
                progress(written, total)
    return Exported(written, 0 if after else total - written, cursor)


async def pages(
    log: Reader, wanted: EventFilter, after: str | None = None, at_once: int = EVENTS_AT_ONCE
) -> AsyncIterator[list[Event]]:
    """Yield the log in the order of commits, page by page, up to a safe cursor."""
    while page := await log.events(wanted, after=after, limit=at_once):
        yield page
        after = page[-1].cursor


class _Audit:
    """A pass over the log in the order of entities."""

    def __init__(self, log: Reader, verdict: Verdict, progress: Progress | None) -> None:
        self._log = log
        self._verdict = verdict
        self._progress = progress
        self._open: dict[str, Rebuilt] = {}  # of the current key; several only if someone edited keys manually
        self._ended: list[Rebuilt] = []
        self._rows_without_first_event = dict.fromkeys(LIFECYCLES, 0)
        self._pruned: dict[tuple[int, str, str], Pruned] = {}
        self._gone: Counter[tuple[int, str, str]] = Counter()

    async def run(self) -> None:
        self._pruned = {record[:3]: record for record in await self._log.pruned()}
        total, after = await self._log.event_count(), (-(1 << 63), 0, "")
        while page := await self._log.history(after, EVENTS_AT_ONCE):
            self._replay(page)
            await self._compare_ended()
            self._verdict.events += len(page)
            after = (page[-1].entity_id, page[-1].seq, page[-1].entity)
            if self._progress:
                self._progress(self._verdict.events, total)
        self._end_open()
        await self._compare_ended()
        await self._count_rows()
        self._compare_pruned()

    def _replay(self, page: list[Event]) -> None:
        rebuilt: Rebuilt | None = None
        for event in page:
            if rebuilt is None or event.entity_id != rebuilt.key or event.entity != rebuilt.entity:
                rebuilt = self._rebuilding(event)
            so_far = rebuilt.so_far
            if so_far.problem is None:
                advance(
                    rebuilt.known,
                    so_far,
                    event.seq,
                    event.epoch,
                    event.type,
                    event.trigger,
                    event.ts,
                    event.from_state,
                    event.to_state,
                )
                rebuilt.trigger = event.trigger
                if event.tenant_id != rebuilt.tenant_id:
                    so_far.problem = f"event {event.seq} is of tenant {event.tenant_id}, not {rebuilt.tenant_id}"

    def _rebuilding(self, event: Event) -> Rebuilt:
        """Return the entity that an event belongs to. The first event of a higher key ends the entities before it."""
        if any(rebuilt.key != event.entity_id for rebuilt in self._open.values()):
            self._end_open()
        if event.entity not in self._open:
            lifecycle = LIFECYCLES.get(event.entity)
            known: Ways = ways(lifecycle) if lifecycle else {}
            self._open[event.entity] = Rebuilt(event.entity, event.entity_id, event.tenant_id, known)
        return self._open[event.entity]

    def _end_open(self) -> None:
        self._ended += self._open.values()
        self._verdict.entities += len(self._open)
        self._open = {}

    async def _compare_ended(self) -> None:
        for name in {rebuilt.entity for rebuilt in self._ended}:
            mine = [rebuilt for rebuilt in self._ended if rebuilt.entity == name]
            if name in LIFECYCLES:
                await self._compare(name, mine)
            else:
                for rebuilt in mine:
                    self._verdict.add(rebuilt.name, f"there is no lifecycle {name!r}", "events")
        self._ended = []

    async def _compare(self, name: str, entities: list[Rebuilt]) -> None:
        lifecycle = LIFECYCLES[name]
        columns = ("id", "tenant_id", "move", *COMPARED, *(("lifecycle",) if lifecycle.shares_table else ()))
        found = await self._log.rows(lifecycle, [rebuilt.key for rebuilt in entities], columns)
        rows = {row["id"]: row for row in found if row.get("lifecycle", name) == name}
        for rebuilt in entities:
            row = rows.get(rebuilt.key)
            self._rows_without_first_event[name] += row is not None and not rebuilt.so_far.seq
            if what := rebuilt.so_far.problem:
                self._verdict.add(rebuilt.name, what, "events")
            elif what := self._absence(rebuilt) if row is None else _difference(rebuilt, row):
                self._verdict.add(rebuilt.name, what, lifecycle.table)

    def _absence(self, rebuilt: Rebuilt) -> str:
        """Return why a row must not be missing, or "" if retention explains it.

        Retention explains it if it deleted rows of this state up to a later time.
        """
        so_far = rebuilt.so_far
        if so_far.completed_at is None:
            return f"the row is gone, though its last event left it {so_far.state}"
        kind = (rebuilt.tenant_id, rebuilt.entity, so_far.state)
        if kind not in self._pruned or so_far.completed_at >= self._pruned[kind].before:
            return f"the row is gone, though retention deleted nothing {so_far.state} that ended so late"
        self._gone[kind] += 1
        return ""

    def _compare_pruned(self) -> None:
        """Report missing rows in excess of the number that retention recorded."""
        for (tenant_id, entity, state), count in self._gone.items():
            pruned = self._pruned[tenant_id, entity, state].rows
            if count > pruned:
                what = f"{count:,} rows that were {state} are gone, retention deleted {pruned:,}"
                self._verdict.add("–", f"{what} (tenant {tenant_id})", LIFECYCLES[entity].table)

    async def _count_rows(self) -> None:
        for name, lifecycle in LIFECYCLES.items():
            total, without = await self._log.counts(lifecycle)
            self._verdict.rows[name] = total
            unnamed = without - self._rows_without_first_event[name]
            if unnamed > 0:
                rows = "row has" if unnamed == 1 else "rows have"
                self._verdict.add("–", f"{unnamed} {name} {rows} no events at all", lifecycle.table)


def _difference(rebuilt: Rebuilt, row: dict[str, Any]) -> str:
    """Return the difference between a row and its events, or "" if they agree."""
    so_far = rebuilt.so_far
    differing = [name for name in COMPARED if row[name] != getattr(so_far, name)]
    if differing:
        return "; ".join(f"{name} is {row[name]}, by its events {getattr(so_far, name)}" for name in differing)
    if row["move"] != rebuilt.trigger:
        return f"move is {row['move']}, by its events {rebuilt.trigger}"
    return "" if row["tenant_id"] == rebuilt.tenant_id else f"tenant is {row['tenant_id']}, not {rebuilt.tenant_id}"

"""The audit: does the log explain every row, and nothing but; and the log itself, as text to keep elsewhere.

Verifying reads one moment of the database, entity by entity in pages, so memory stays bounded however long the log is.
It rebuilds every entity from its events and compares it with its row; a row may be gone if retention accounts for it.
An edit that leaves a consistent story, of an event's actor, reason or payload, is seen by the seals of the log.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keptwork.errors import Damaged
from keptwork.lifecycle import LIFECYCLES
from keptwork.lifecycle.replay import Replayed, Ways, advance, ways
from keptwork.service import seals
from keptwork.service.entities import public_id
from keptwork.service.events import as_json
from keptwork.service.seals import Sealed
from keptwork.store.protocol import Reader, Store
from keptwork.store.records import Event, EventFilter, Pruned

EVENTS_AT_ONCE = 5_000
PROBLEMS_KEPT = 1_000

COMPARED = ("state", "seq", "epoch", "created_at", "updated_at", "started_at", "completed_at")
"""What a row must have in common with its replayed events."""

_encoded = json.JSONEncoder(ensure_ascii=False).encode

Progress = Callable[[int, int], None]
"""Is told, after each page, how many events are done and how many there are."""


class Problem(NamedTuple):
    """Something the log does not explain: which entity, what about it, and where to look."""

    entity: str
    what: str
    where: str


@dataclass(slots=True)
class Verdict:
    """What an audit found. Only the first problems are kept, all are counted."""

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
    """One entity while its events are read."""

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
    """How many events were written, how many are left for a later export, and where that goes on."""

    events: int
    left: int
    cursor: str | None


async def verify(store: Store, progress: Progress | None = None, *, against: str | None = None) -> Verdict:
    """Replays every event, compares every row and checks every seal, all as of one moment; `against` is the hash of a
    seal that was kept elsewhere. Damage ends it, as a problem like others."""
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
        # Damage has put nothing where a number was. It is in the verdict already; there is no more to learn here.
    return verdict


async def export(
    store: Store, write: Callable[[str], object], progress: Progress | None = None, *, after: str | None = None
) -> Exported:
    """Writes every event as a line of JSON, in the order of commits, all as of one moment.

    On PostgreSQL it ends before the oldest transaction that is still open, so that a later export can go on from its
    cursor without a gap.
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
    """The log in the order of commits, page by page, to where it is safe to go on from."""
    while page := await log.events(wanted, after=after, limit=at_once):
        yield page
        after = page[-1].cursor


class _Audit:
    """One pass over the log in the order of entities."""

    def __init__(self, log: Reader, verdict: Verdict, progress: Progress | None) -> None:
        self._log = log
        self._verdict = verdict
        self._progress = progress
        self._open: dict[str, Rebuilt] = {}  # of the key being read; more than one only where hands typed a key twice
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
        """The entity an event belongs to. The first event of a higher key ends those before it."""
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
        """What is wrong with a row being gone: nothing, if retention deleted what ended in this state later."""
        so_far = rebuilt.so_far
        if so_far.completed_at is None:
            return f"the row is gone, though its last event left it {so_far.state}"
        kind = (rebuilt.tenant_id, rebuilt.entity, so_far.state)
        if kind not in self._pruned or so_far.completed_at >= self._pruned[kind].before:
            return f"the row is gone, though retention deleted nothing {so_far.state} that ended so late"
        self._gone[kind] += 1
        return ""

    def _compare_pruned(self) -> None:
        """Rows that went in the shadow of others: more are gone than retention says it deleted."""
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
    """What a row has that its events do not say."""
    so_far = rebuilt.so_far
    differing = [name for name in COMPARED if row[name] != getattr(so_far, name)]
    if differing:
        return "; ".join(f"{name} is {row[name]}, by its events {getattr(so_far, name)}" for name in differing)
    if row["move"] != rebuilt.trigger:
        return f"move is {row['move']}, by its events {rebuilt.trigger}"
    return "" if row["tenant_id"] == rebuilt.tenant_id else f"tenant is {row['tenant_id']}, not {rebuilt.tenant_id}"

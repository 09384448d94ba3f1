"""A reaper that is held up between its read and its write, and what it did to the jobs that had moved on meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from keptwork.core.lifecycles import JOB, Change, decide, insist
from keptwork.maintenance.expired_leases import Reaper
from keptwork.maintenance.periodic import Outage
from keptwork.store import Job, Store
from tests.acceptance.rivals import Rivals
from tests.support.database_time import Timed

LOCK_WAIT_SECONDS = 0.002

Row = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """How often it was held up, and what was wrong afterwards."""

    pauses: int = 0
    read: int = 0
    moved_meanwhile: int = 0
    finished_meanwhile: int = 0
    late_writes: int = 0
    changed: list[str] = field(default_factory=list)
    not_reaped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.pauses} pauses, {self.read} jobs read, {self.moved_meanwhile} of them moved meanwhile, "
            f"{self.finished_meanwhile} finished meanwhile, {self.late_writes} late writes, "
            f"changed {len(self.changed)}, left behind {len(self.not_reaped)}"
        )


class HeldUp:
    """A real store whose reads of overdue jobs return late, when others have moved them."""

    def __init__(self, store: Store, rivals: Rivals, dice: random.Random) -> None:
        self._store, self._rivals, self._dice = store, rivals, dice
        self.read: list[Job] = []
        self.left: dict[int, Row] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def overdue(self, limit: int) -> list[Job]:
        self.read = await self._store.overdue(limit)
        await self._rivals.move(self.read)
        return self.read

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        """Sometimes a rival's transaction is still open when the write begins, and commits while that waits."""
        if self._dice.random() < 0.8:
            self.left = await self._rows(self._store)
            return await self._store.apply(changes)
        async with self._store.transaction() as rival:
            rows = await self._rows(rival)
            job = self._dice.choice(self.read)
            if rows[job.id]["seq"] == job.seq:
                await rival.apply([insist(decide(JOB, job, "cancel", actor="operator"))])
            self.left = await self._rows(rival)
            write = asyncio.create_task(self._store.apply(changes))
            await asyncio.wait({write}, timeout=LOCK_WAIT_SECONDS)
        return await write

    async def _rows(self, reader: Any) -> dict[int, Row]:
        return {row["id"]: row for row in await reader.rows(JOB, [job.id for job in self.read])}


async def hold_up(timed: Timed, pauses: int, seed: int) -> Outcome:
    """So many pauses, each with a few jobs whose leases are over when they are read."""
    rivals, outcome, finished = Rivals(timed, seed), Outcome(), dict[int, Row]()
    await rivals.begin()
    for _ in range(pauses):
        await rivals.let_leases_end()
        store = HeldUp(timed.store, rivals, random.Random(seed + outcome.pauses))
        await Reaper(store, lambda: None, Outage()).run_once()
        rows = await store._rows(timed.store)
        _compare(store, rows, outcome)
        finished |= {id: row for id, row in rows.items() if JOB.state(row["state"]).final}
    outcome.late_writes = rivals.late_writes
    now = {row["id"]: row for row in await timed.store.rows(JOB, list(finished))}
    outcome.changed += [f"job {id} was finished, now it is {now[id]}" for id in finished if now[id] != finished[id]]
    return outcome


def _compare(store: HeldUp, rows: dict[int, Row], outcome: Outcome) -> None:
    """What moved between the read and the write is as it was left; all the rest was reaped."""
    outcome.pauses += 1
    outcome.read += len(store.read)
    for job in store.read:
        left, row = store.left[job.id], rows[job.id]
        if left["seq"] == job.seq:
            if row["seq"] != job.seq + 1 or row["actor"] != "reaper":
                outcome.not_reaped.append(f"job {job.id} is {row['state']} since {row['move']}")
            continue
        outcome.moved_meanwhile += 1
        outcome.finished_meanwhile += JOB.state(left["state"]).final
        if row != left:
            outcome.changed.append(f"job {job.id} was {left['state']} after {left['move']}, then {row['move']}")

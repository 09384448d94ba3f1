"""Jobs through random lives on a real store, with every move that was acknowledged written down beside it."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from keptwork.core.lifecycles import JOB, WORKER, Change, Token, decide
from keptwork.errors import InvalidTransition
from keptwork.store import NewJob, Store

LEASE_US = 600_000_000
OVER_AT_ONCE_US = 1

HOLDERS = ("succeed", "succeed", "succeed", "retry", "snooze", "release", "fail", "cancel", "dead_letter", "abandon")
EARLY = ("start",) * 12 + ("release", "cancel", "fail")


class Lives:
    """A worker that does with its jobs whatever the dice say. `moves` is the test's own count, job by job."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._dice = random.Random(seed)
        self._worker = 0
        self._claims = 0
        self.moves: dict[int, list[str]] = defaultdict(list)

    @property
    def total(self) -> int:
        return sum(len(made) for made in self.moves.values())

    async def begin(self) -> None:
        self._worker = await self._store.create(WORKER, name="dice", incarnation="1", workspace_id="test")

    async def enqueue(self, count: int) -> None:
        policies = ("dead_letter", "fail")
        jobs = [
            NewJob("dice", max_attempts=self._dice.randint(1, 4), on_exhausted=self._dice.choice(policies))
            for _ in range(count)
        ]
        for key in await self._store.enqueue(jobs):
            self.moves[key].append("enqueue")

    async def go_on(self, limit: int) -> int:
        """One round: claim, start or not, end or hand back; then take back what was abandoned."""
        self._claims += 1
        jobs = await self._store.claim(self._worker, ["default"], limit, LEASE_US, claim_id=self._claims)
        keys = [job.id for job in jobs]
        for key in keys:
            self.moves[key].append("claim")
        await self._throw(keys, EARLY)
        running = await self._store.rows(JOB, keys)
        await self._throw([row["id"] for row in running if row["state"] == "running"], HOLDERS)
        await self._take_back()
        return len(keys)

    async def _throw(self, keys: list[int], ways: tuple[str, ...]) -> None:
        now = await self._store.now()
        changes: list[Change] = []
        for row in await self._store.rows(JOB, keys):
            way = self._dice.choice(ways)
            if way == "abandon":
                await self._store.renew(self._worker, [(row["id"], row["epoch"])], OVER_AT_ONCE_US)
            else:
                changes.append(self._decided(row, way, now))
        await self._apply(changes)

    def _decided(self, row: dict[str, Any], way: str, now: int) -> Change:
        facts: dict[str, Any] = {"token": Token(self._worker, row["epoch"]), "now": now, "actor": f"w:{self._worker}"}
        facts |= {"permanent": way == "fail", "reason_code": "policy_violation"}
        values = {"delay_us": 0, "error": "dice", "result": "{}"}
        change = decide(JOB, row, way, values=values, **facts)
        if isinstance(change, InvalidTransition):  # a retry without attempts left
            change = decide(JOB, row, "dead_letter", values=values, **facts)
        assert isinstance(change, Change), change
        return change

    async def _take_back(self) -> None:
        now = await self._store.now()
        changes = []
        for job in await self._store.overdue(10_000):
            change = decide(JOB, job, "expire", now=now, lease_over=True, actor="reaper")
            if isinstance(change, InvalidTransition):
                change = decide(JOB, job, "dead_letter", now=now, lease_over=True, reason_code="timeout")
            assert isinstance(change, Change), change
            changes.append(change)
        await self._apply(changes)

    async def _apply(self, changes: list[Change]) -> None:
        changes.sort(key=lambda change: change.move.trigger)
        assert await self._store.apply(changes) == []
        for change in changes:
            self.moves[change.id].append(change.move.trigger)


async def live(store: Store, jobs: int, *, seed: int = 1, batch: int = 200) -> Lives:
    """So many jobs, until every one of them has ended."""
    lives = Lives(store, seed)
    await lives.begin()
    for first in range(0, jobs, batch):
        await lives.enqueue(min(batch, jobs - first))
        await lives.go_on(batch)
    while await lives.go_on(batch):
        pass
    return lives

"""The same seed gives the same event log, byte for byte: nothing in the store draws on anything but its clock."""

from __future__ import annotations

import json
import random
from itertools import count
from pathlib import Path

from keptwork.core.clock import ManualClock
from keptwork.core.lifecycles import JOB, WORKER, Token, decide, insist
from keptwork.errors import InvalidTransition
from keptwork.store import Job, NewJob, Store, open_store

STEPS = 400


async def test_the_same_seed_gives_the_same_log_byte_for_byte(tmp_path: Path):
    first = await log_of(tmp_path / "first.db", seed=7)
    assert first == await log_of(tmp_path / "second.db", seed=7)
    assert first != await log_of(tmp_path / "third.db", seed=8)
    assert first.count(b"\n") > STEPS


async def log_of(path: Path, seed: int) -> bytes:
    """Everything that happened, ids and times included, as lines of JSON."""
    clock = ManualClock()
    store = await open_store(f"sqlite:///{path}", clock=clock)
    try:
        await Drive(store, clock, seed).run()
        events = await store.events(limit=100_000)
    finally:
        await store.close()
    return b"".join(json.dumps(event._asdict(), sort_keys=True).encode() + b"\n" for event in events)


class Drive:
    """A few workers that take, finish, drop and abandon jobs, as a seeded die says."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self._store, self._clock, self._die = store, clock, random.Random(seed)
        self._claims = count(1)
        self._workers: list[int] = []
        self._held: list[Job] = []

    async def run(self) -> None:
        for number in range(3):
            incarnation = f"i-{number}"
            id = await self._store.create(WORKER, name="w", incarnation=incarnation, workspace_id="here")
            self._workers.append(id)
        for _ in range(STEPS):
            await self._die.choice((self._enqueue, self._claim, self._move, self._move, self._reap))()
            self._clock.advance(self._die.randrange(5_000_000))

    async def _enqueue(self) -> None:
        jobs = [NewJob("k", priority=self._die.randrange(3), delay_us=self._die.randrange(9)) for _ in range(3)]
        await self._store.enqueue(jobs)

    async def _claim(self) -> None:
        lease = self._die.choice((5, 60)) * 1_000_000
        worker = self._die.choice(self._workers)
        self._held += await self._store.claim(worker, ["default"], 4, lease, claim_id=next(self._claims))

    async def _move(self) -> None:
        """The worker may find out here that it has lost the job."""
        if not self._held:
            return
        job = self._held.pop(self._die.randrange(len(self._held)))
        row = await self._store.get(JOB, job.id, None)
        trigger = self._die.choice(("start", "succeed", "retry", "release", "snooze"))
        token = Token(job.owner or 0, job.epoch)
        change = decide(JOB, row or job, trigger, now=await self._store.now(), token=token)
        if not isinstance(change, InvalidTransition):
            await self._store.apply([change._replace(actor="w", values={"delay_us": 1_000_000})])
        if trigger == "start":
            self._held.append(job)

    async def _reap(self) -> None:
        now = await self._store.now()
        for job in await self._store.overdue(10):
            change = decide(JOB, job, "expire", now=now, lease_over=True)
            if isinstance(change, InvalidTransition):
                reason = "exhausted_retries"
                change = decide(JOB, job, "dead_letter", now=now, lease_over=True, reason_code=reason)
            await self._store.apply([insist(change)])

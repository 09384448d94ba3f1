"""Everything that can happen to jobs between the moment a reaper reads them and the moment it writes."""

from __future__ import annotations

import random
from itertools import count

from keptwork.core.lifecycles import JOB, WORKER, Change, Token, decide, insist
from keptwork.maintenance.expired_leases import reaped
from keptwork.store import Job, NewJob
from tests.support.database_time import Timed

LEASE_US = 1_000_000
LONG_US = 3_600_000_000
MOST_JOBS = 4


class Rivals:
    """The worker whose leases are over, another worker, another reaper and an operator, moved by dice."""

    def __init__(self, timed: Timed, seed: int) -> None:
        self._timed, self._store = timed, timed.store
        self._dice = random.Random(seed)
        self._rounds = count(1)
        self._queue = ""
        self.late = self.other = 0
        self.late_writes = 0

    async def begin(self) -> None:
        """Two workers register: one whose leases end, and one that takes over."""
        self.late, self.other = [
            await self._store.create(WORKER, name=name, incarnation="1", workspace_id="test")
            for name in ("late", "other")
        ]

    async def let_leases_end(self) -> None:
        """A few jobs of a new queue, running or only claimed, whose leases are over."""
        number = next(self._rounds)
        self._queue = f"round-{number}"
        policies, jobs = ("dead_letter", "fail"), self._dice.randint(1, MOST_JOBS)
        await self._store.enqueue(
            [
                NewJob("k", queue=self._queue, max_attempts=attempts, on_exhausted=self._dice.choice(policies))
                for attempts in self._dice.choices((1, 2, 3), k=jobs)
            ]
        )
        start = self._dice.random() < 0.8
        await self._store.claim(self.late, [self._queue], jobs, LEASE_US, claim_id=number, start=start)
        await self._timed.advance(LEASE_US)

    async def move(self, jobs: list[Job]) -> None:
        """What becomes of each: nothing, refused attempts of its late worker, or a move and perhaps a new life."""
        ways = (self._nobody, self._its_worker, self._operator, self._another_reaper, self._another_reaper)
        for job in jobs:
            await self._dice.choice(ways)(job)
        if self._dice.random() < 0.7:
            await self._take_over()

    async def _nobody(self, job: Job) -> None:
        """It stays as it is."""

    async def _its_worker(self, job: Job) -> None:
        """Tries to settle and to renew what is no longer its own."""
        trigger = self._dice.choice(("succeed", "release", "retry") if job.state == "running" else ("release", "start"))
        before = (job.lease_until or 0) - 1
        late = decide(JOB, job, trigger, token=job.token, now=before, actor=f"w:{self.late}")
        if isinstance(late, Change):
            self.late_writes += not await self._store.apply([late])
        self.late_writes += not await self._store.renew(self.late, [(job.id, job.epoch)], LONG_US)

    async def _operator(self, job: Job) -> None:
        trigger = self._dice.choice(("cancel", "release", "dead_letter"))
        await self._store.apply([insist(decide(JOB, job, trigger, reason_code="policy_violation", actor="operator"))])

    async def _another_reaper(self, job: Job) -> None:
        await self._store.apply([reaped(job, await self._store.now())._replace(actor="another reaper")])

    async def _take_over(self) -> None:
        """Another worker claims what is back in the queue, and finishes it, keeps it, or loses its lease as well."""
        jobs = await self._store.claim(
            self.other, [self._queue], MOST_JOBS, LONG_US, claim_id=self._dice.getrandbits(62), start=True
        )
        for job in jobs:
            way = self._dice.choice(("succeed", "fail", "cancel", "snooze", "keep", "lose"))
            if way == "lose":
                await self._store.renew(self.other, [(job.id, job.epoch)], 1)
                await self._timed.advance(1)
            elif way != "keep":
                await self._store.apply([await self._settled(job, way)])

    async def _settled(self, job: Job, trigger: str) -> Change:
        token, now = Token(self.other, job.epoch), await self._store.now()
        values = {"result": "{}", "error": "dice", "delay_us": 0}
        return insist(decide(JOB, job, trigger, token=token, now=now, permanent=True, actor="other", values=values))

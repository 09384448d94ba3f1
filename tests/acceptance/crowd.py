"""Many operating-system processes that do everything at once to one SQLite file.

Usage: python -m tests.acceptance.crowd URL PROCESSES SECONDS [TWIN]. Prints, as JSON, what each process was granted and
every error that reached it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from keptwork.core.lifecycles import JOB, WORKER, decide, insist
from keptwork.errors import KeptworkError
from keptwork.store import NewJob, Store, open_store
from tests.acceptance.together import together
from tests.acceptance.twins import break_store
from tests.support.command import run

LEASE_US = 600_000_000
BATCH = 5
CLI_READS = (("jobs", "list"), ("queues", "list"), ("events", "list"), ("dead-letters", "list"))


class Caller:
    """One process: chooses a call at random, again and again."""

    def __init__(self, store: Store, number: int, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._chance = random.Random(number)
        self._claims = 0
        self.enqueued: list[int] = []
        self.settled: list[int] = []
        self.errors: list[str] = []
        self.calls = 0
        self.slowest = 0.0

    async def call(self) -> None:
        ways = (self._enqueue, self._enqueue, self._enqueue_together, self._work, self._work, self._read, self._pause)
        began = time.monotonic()
        try:
            await self._chance.choice(ways)()
        except KeptworkError as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        self.calls += 1
        self.slowest = max(self.slowest, time.monotonic() - began)

    async def _enqueue(self) -> None:
        self.enqueued += await self._store.enqueue([NewJob("crowd")] * self._chance.randint(1, BATCH))

    async def _enqueue_together(self) -> None:
        async with self._store.transaction() as transaction:
            keys = [await transaction.enqueue([NewJob("crowd")]) for _ in range(2)]
        self.enqueued += [key for (key,) in keys]

    async def _work(self) -> None:
        self._claims += 1
        jobs = await self._store.claim(
            self._worker, ["default"], BATCH, LEASE_US, claim_id=self._claims, start=True, tenant_id=None
        )
        actor = f"w:{self._worker}"
        changes = [insist(decide(JOB, job, "succeed", token=job.token, actor=actor)) for job in jobs]
        late = {change.id for change in await self._store.apply(changes)}
        self.settled += [job.id for job in jobs if job.id not in late]
        self.errors += [f"job {id} was taken away" for id in late]

    async def _read(self) -> None:
        await self._store.jobs(limit=20)
        await self._store.queues(1)
        await self._store.events(limit=20, newest_first=True)

    async def _pause(self) -> None:
        await self._store.set_queue_paused("other", self._chance.random() < 0.5)

    def look(self, url: str) -> None:
        """As an operator does, with the command line."""
        done = run(*self._chance.choice(CLI_READS), "--json", "--db", url)
        if done.returncode:
            self.errors.append(done.stderr)


async def take_part(url: str, number: int, seconds: float, ready: Callable[[], None]) -> dict[str, Any]:
    store = await open_store(url, migrate=False)
    worker = await store.create(WORKER, name=f"crowd-{number}", incarnation=str(os.getpid()), workspace_id="test")
    caller = Caller(store, number, worker)
    ready()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if number == 0:
            caller.look(url)
        await caller.call()
    await store.close()
    kept = ("enqueued", "settled", "errors", "calls", "slowest")
    return {name: getattr(caller, name) for name in kept}


def main(url: str, processes: int, seconds: float, twin: str = "") -> None:
    if twin:
        break_store(twin)
    failed, parts = together(processes, lambda number, ready: take_part(url, number, seconds, ready))
    print(json.dumps({"failed": failed, "parts": parts}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])

"""Jobs enqueued without a pause while the database fails: each under a key, again and again until acknowledged."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from itertools import count

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB
from keptwork.errors import StoreError
from keptwork.store import NewJob, Store
from tests.acceptance.chaos import Stage, until
from tests.acceptance.worker_program import declare

PORTION = 25
LONGEST_QUEUE = 75
PAUSE_SECONDS = 0.05


class Feeder:
    """A thread that keeps a stage's queue filled; what was acknowledged, and only that, goes into the stage's ids. It
    gives a call up after its patience in seconds, if that has an end, and repeats it."""

    def __init__(self, on: Stage, at_least: int, longest: float, patience: float | None = None) -> None:
        self.refusals: Counter[str] = Counter()
        self._on = on
        self._at_least = at_least
        self._longest = longest
        self._patience = patience
        self.is_eager = False
        """Whether it enqueues on, however many jobs wait."""
        self._enough = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._feed()), daemon=True)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Feeds what is missing to the number that was asked for, and ends."""
        self._enough.set()
        self._thread.join()

    async def _feed(self) -> None:
        app = Keptwork(self._on.url)
        declare(app, None)
        async with app:
            store = await app.open()
            for portion in count():
                if self._enough.is_set() and len(self._on.ids) >= self._at_least:
                    return
                await self._there_is_room(store)
                self._on.ids += await self._acknowledged(store, self._jobs(app, portion))

    def _jobs(self, app: Keptwork, portion: int) -> list[NewJob]:
        kind, first = app.kinds["two_steps"], portion * PORTION
        arguments = [
            {"number": first + n, "seconds": self._on.chance.uniform(0, self._longest)} for n in range(PORTION)
        ]
        return [app.new_job(kind, one)._replace(key=f"number-{one['number']}") for one in arguments]

    async def _acknowledged(self, store: Store, jobs: list[NewJob]) -> list[int]:
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    return await store.enqueue(jobs)
            except (StoreError, TimeoutError) as refusal:
                self.refusals[type(refusal).__name__] += 1
                await asyncio.sleep(PAUSE_SECONDS)

    async def _there_is_room(self, store: Store) -> None:
        while not self.is_eager:
            try:
                rows = await store.rows(JOB, self._on.ids[-LONGEST_QUEUE:], ("state",))
                if sum(row["state"] == "queued" for row in rows) < LONGEST_QUEUE:
                    return
            except StoreError as refusal:
                self.refusals[type(refusal).__name__] += 1
            await asyncio.sleep(PAUSE_SECONDS)


def back_at_work(on: Stage, patience: float = 30.0) -> list[float]:
    """How long, from now, each worker takes to begin a job that was not there before; jobs must be fed meanwhile."""
    now, first_new = time.time(), len(on.ids)
    began: dict[int, float] = {}
    pids = {member.pid for member in on.fleet.members}

    def all_work_again() -> bool:
        for delivery in list(on.sink.deliveries):
            if delivery.job >= first_new and delivery.pid in pids:
                began.setdefault(delivery.pid, delivery.at - now)
        return began.keys() == pids

    assert until(all_work_again, patience), f"of {pids} only {began.keys()} work again"
    return list(began.values())

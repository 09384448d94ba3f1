"""What the tests of killed and of stopped workers share: jobs fed while faults strike, and waiting for them to end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB
from keptwork.job import DeclaredJob
from keptwork.store import Store, open_store
from tests.acceptance.effects import Sink
from tests.acceptance.examination import Findings, examine
from tests.acceptance.fleet import Fleet
from tests.acceptance.observer import observe, observed, waiting
from tests.acceptance.worker_program import declare

PATIENCE = 60.0


class Stage:
    """A database with its queue, a fleet of workers and the sink they deliver to. Jobs are numbered from 0."""

    def __init__(self, url: str, fleet: Fleet, sink: Sink, seed: int) -> None:
        self.url = url
        self.fleet = fleet
        self.sink = sink
        self.chance = random.Random(seed)
        self.ids: list[int] = []

    @property
    def kind(self) -> str:
        return urlsplit(self.url).scheme

    def feed(self, count: int, longest: float) -> None:
        """More jobs, each of up to so many seconds of work."""
        first = len(self.ids)
        many = [{"number": first + n, "seconds": self.chance.uniform(0, longest)} for n in range(count)]
        self.ids += asyncio.run(enqueue(self.url, "two_steps", many))

    @property
    def backlog(self) -> int:
        """How many jobs wait to be claimed."""
        return asyncio.run(waiting(self.url))

    def wait_for_backlog(self, at_most: int, patience: float = 300.0) -> None:
        """Until no more than so many wait, or patience ends."""
        until(lambda: self.backlog <= at_most, patience)

    def wait_for_delivery_by(self, pid: int) -> None:
        """Until that process is at work, or patience ends."""
        until(lambda: any(delivery.pid == pid for delivery in list(self.sink.deliveries)))

    def wait_until_done(self, patience: float = PATIENCE) -> None:
        """All jobs have ended, or patience has."""
        until(lambda: not asyncio.run(unfinished(self.url, self.ids)), patience)

    def examine(self) -> Findings:
        """After the last worker is gone, so that nothing moves any more."""
        self.fleet.close()
        return asyncio.run(_examine(self))


@contextmanager
def stage(
    url: str, seed: int, lease: str = "2s", twin: str = "", through: str = "", **environment: str
) -> Iterator[Stage]:
    """A prepared database; its workers reach it `through` another address, if one is given."""
    asyncio.run(_prepare(url))
    with closing(Sink()) as sink, closing(Fleet(through or url, sink.port, lease, twin, **environment)) as fleet:
        yield Stage(url, fleet, sink, seed)


async def enqueue(url: str, kind: str, many: list[dict[str, float]]) -> list[int]:
    app = Keptwork(url)
    declare(app, None)
    async with app:
        return [handle.key for handle in await app.enqueue_many(DeclaredJob(app, app.kinds[kind]), many)]


async def unfinished(url: str, ids: list[int]) -> list[int]:
    store = await open_store(url)
    rows = await store.rows(JOB, ids, ("id", "state"))
    await store.close()
    return [row["id"] for row in rows if not JOB.state(row["state"]).final]


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Looks again and again until it is so; false when patience ran out."""
    end = time.monotonic() + patience
    while not (so := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return so


async def _prepare(url: str) -> None:
    await (await open_store(url)).close()
    await observe(url)


async def _examine(stage: Stage) -> Findings:
    store: Store = await open_store(stage.url)
    try:
        found = await examine(store, stage.ids, stage.sink, stage.fleet.absences)
        found.observed = await observed(stage.url)
        return found
    finally:
        await store.close()

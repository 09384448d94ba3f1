"""The stores as a made-up example sees them: opened together, and each answering in the model's own numbers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from keptwork.core.lifecycles import JOB, LIFECYCLES, WORKER, Change, Lifecycle, Token, decide, insist
from keptwork.core.replay import replay
from keptwork.store import Event, NewJob, Store
from tests.conformance.plain_model import FINAL, PlainJob, PlainStore, Wish
from tests.support.database_time import START, Timed, open_timed

T = TypeVar("T")
MS = 1_000
FACTS: dict[str, dict[str, dict[str, Any]]] = {
    "holder": {"fail": {"permanent": True}, "dead_letter": {"reason_code": "validation_failed"}},
    "reaper": {"dead_letter": {"reason_code": "exhausted_retries"}},
    "operator": {"dead_letter": {"reason_code": "policy_violation"}},
}


class Stores:
    """Both stores, open, under one clock and one event loop."""

    def __init__(self, *urls: str) -> None:
        self._runner = asyncio.Runner()
        self.timed: list[Timed] = [self.run(open_timed(url)) for url in urls]
        self.now = START // MS
        self.examples = 0
        self.steps = 0
        self.seen: Counter[str] = Counter()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        for timed in self.timed:
            self.run(timed.advance(milliseconds * MS))

    def close(self) -> None:
        for timed in self.timed:
            self.run(timed.close())
        self._runner.close()


class Side:
    """One store's side of an example: its ids for the model's numbers, its changes for the model's wishes."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self._name = store, name
        self._jobs: list[int] = []
        self._workers: list[int] = []
        self._changes: dict[Wish, Change] = {}
        self._events = -1  # that were there before
        self._compared = 0

    async def hire(self) -> None:
        incarnation = f"i-{len(self._workers)}"
        if self._events < 0:
            self._events = await self.store.event_count()
        id = await self.store.create(WORKER, name=self._name, incarnation=incarnation, workspace_id="here")
        self._workers.append(id)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        ids = await self.store.enqueue(jobs)
        self._jobs += [id for id in dict.fromkeys(ids) if id not in self._jobs]
        return self._numbers(ids)

    async def claim(
        self, worker: int, queues: list[str], limit: int, lease_us: int, claim: int, again: bool = False
    ) -> list[int]:
        jobs = await self.store.claim(self._workers[worker], queues, limit, lease_us, claim_id=claim, again=again)
        return self._numbers([job.id for job in jobs])

    async def decide(self, wish: Wish) -> bool:
        """Whether the kernel allows it on the row as this store has it; if so the change is kept for the wish."""
        row = await self.store.get(JOB, self._jobs[wish.job], None)
        assert row is not None
        owner = None if wish.owner is None else self._workers[wish.owner]
        decision = decide(
            JOB,
            row,
            wish.trigger,
            now=await self.store.now(),
            token=Token(owner, row["epoch"]) if owner is not None else None,
            lease_over=wish.by == "reaper",
            **FACTS[wish.by].get(wish.trigger, {}),
        )
        if not isinstance(decision, Change):
            return False
        values = {"delay_us": wish.delay * MS, "error": "e", "result": "{}"}
        self._changes[wish] = decision._replace(actor=wish.actor, values=values)
        return True

    async def decide_all(self, wishes: Sequence[Wish]) -> None:
        for wish in wishes:
            assert await self.decide(wish)

    async def apply(self, wishes: Sequence[Wish]) -> list[Wish]:
        """Those that were lost."""
        changes = [self._changes[wish] for wish in wishes]
        lost = await self.store.apply(changes)
        return [wish for wish, change in zip(wishes, changes, strict=True) if any(change is late for late in lost)]

    async def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int) -> list[tuple[int, int]]:
        named = {(self._jobs[number], epoch): (number, epoch) for number, epoch in tokens}
        return [named[lost] for lost in await self.store.renew(self._workers[worker], list(named), lease_us)]

    async def overdue(self) -> list[int]:
        return sorted(self._numbers([job.id for job in await self.store.overdue(100)]))

    async def move_worker(self, worker: int, trigger: str) -> bool:
        row = await self.store.get(WORKER, self._workers[worker], None)
        assert row is not None
        decision = decide(WORKER, row, trigger)
        return isinstance(decision, Change) and not await self.store.apply([decision])

    def _numbers(self, ids: Sequence[int]) -> list[int]:
        return [self._jobs.index(id) for id in ids]

    # --- comparing with the model

    async def agrees(self, model: PlainStore) -> None:
        assert await self._job_rows() == [_plain(job) for job in model.jobs]
        assert await self._worker_rows() == [(worker.state, worker.seq) for worker in model.workers]
        assert await self.store.event_count() - self._events == len(model.log)
        new = model.log[self._compared :]
        page = await self.store.events(limit=len(new), newest_first=True)
        assert sorted(map(self._logged, page), key=str) == sorted(new, key=str)
        self._compared = len(model.log)

    async def _job_rows(self) -> list[tuple[Any, ...]]:
        found = {row["id"]: row for row in await self.store.rows(JOB, self._jobs)}
        return [self._job_row(found[id]) for id in self._jobs]

    def _job_row(self, row: dict[str, Any]) -> tuple[Any, ...]:
        owner = None if row["owner"] is None else self._workers.index(row["owner"])
        lease = None if row["lease_until"] is None else row["lease_until"] // MS
        kept = tuple(row[name] for name in ("state", "seq", "epoch", "attempts", "priority"))
        return (*kept, row["run_at"] // MS, owner, lease, row["claim_id"])

    async def _worker_rows(self) -> list[tuple[str, int]]:
        found = {row["id"]: row for row in await self.store.rows(WORKER, self._workers)}
        return [(found[id]["state"], found[id]["seq"]) for id in self._workers]

    def _logged(self, event: Event) -> tuple[Any, ...]:
        which = (self._jobs if event.entity == "job" else self._workers).index(event.entity_id)
        return (event.entity, which, event.seq, event.epoch, event.type, event.from_state, event.to_state)

    async def cancel_all(self) -> None:
        """Ends what is not over yet, whatever the model thinks."""
        rows = await self.store.rows(JOB, self._jobs)
        changes = [decide(JOB, row, "cancel") for row in rows if row["state"] not in FINAL]
        assert await self.store.apply([insist(change) for change in changes]) == []

    async def replays(self, model: PlainStore) -> None:
        """The whole log is the model's (all but the last cancel), and rebuilds every row."""
        for name, ids in (("job", self._jobs), ("worker", self._workers)):
            for number, id in enumerate(ids):
                events = [e for e in await self.store.history((id, 0), 200) if e.entity_id == id]
                told = [e for e in model.log if e[:2] == (name, number)]
                assert [self._logged(e) for e in events[: len(told)]] == told
                await self._rebuilt(LIFECYCLES[name], id, events)

    async def _rebuilt(self, lifecycle: Lifecycle, id: int, events: Sequence[Event]) -> None:
        row = await self.store.get(lifecycle, id, None)
        rebuilt = replay(lifecycle, [event._asdict() for event in events])
        assert row is not None
        assert rebuilt.problem is None
        for column in ("state", "seq", "epoch", "created_at", "updated_at", "started_at", "completed_at"):
            assert row[column] == getattr(rebuilt, column), column


def _plain(job: PlainJob) -> tuple[Any, ...]:
    kept = (job.state, job.seq, job.epoch, job.attempts, job.priority)
    return (*kept, job.run_at, job.owner, job.lease_until, job.claim)

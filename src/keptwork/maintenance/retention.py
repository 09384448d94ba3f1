"""Retention: delete finished entities that are old enough, and retain their events.

A sweep walks along the primary key, oldest first, so that it needs no index that every finishing job would have to
maintain. It reads pages without locks, deletes a few hundred rows per transaction, and pauses several times as long as
that took. An interrupted sweep has deleted whole batches, and the next sweep deletes the rest. A flow or crew is always
in one batch with everything inside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from keptwork.core.durations import Span, span_us
from keptwork.core.lifecycles import (
    AGENT,
    CREW,
    JOB,
    RUN,
    WORKER,
    WORKSTREAM,
    Lifecycle,
    State,
    agent,
    crew,
    run,
    workstream,
)
from keptwork.core.lifecycles.job import CANCELLED, FAILED, SUCCEEDED
from keptwork.errors import BadInput, StoreError
from keptwork.observability.stats import roll_up
from keptwork.store import Store
from keptwork.store.contract.records import Expiry
from keptwork.store.contract.retention import WHOLE

AT_ONCE = 500
LOOKED_AT_ONCE = 2_000
WHOLE_AT_ONCE = 50  # flows or crews whose contents are counted together; each can have any size
SHORTEST_REST = 0.005
RESTS = 4  # times as long as a batch took: a sweep uses at most a fifth of the only writer's time

SIGNALS_US = 7 * 86_400_000_000  # no job will wait for a signal that is this old
DELIVERIES_US = 30 * 86_400_000_000  # age of finished and failed webhook deliveries
BUDGETS_US = 90 * 86_400_000_000  # of days and deleted jobs; the ledger retains the costs
UNUSED_BLOBS_US = 3_600_000_000  # a younger blob might be referred to soon

FINISHED = (SUCCEEDED.name, CANCELLED.name)
FAILURES = tuple(state.name for state in JOB.states if state.final and state.name not in FINISHED)

ENDED_LIKE: Mapping[Lifecycle, Mapping[State, State]] = {
    CREW: {crew.COMPLETED: SUCCEEDED, crew.FAILED: FAILED, crew.CANCELED: CANCELLED},
    RUN: {run.SUCCEEDED: SUCCEEDED, run.FAILED: FAILED, run.CANCELED: CANCELLED},
    WORKSTREAM: {workstream.S_SUCCESS: SUCCEEDED, workstream.S_ABANDONED: FAILED},
    AGENT: {agent.COMPLETED: SUCCEEDED, agent.FAILED: FAILED},
}
"""Entities that end like jobs are retained as long as such jobs. In the order of deletion, after the jobs."""

Expiries = list[tuple[Lifecycle, Expiry]]

Found = list[tuple[int, str]]
"""IDs and states of entities."""

Progress = Callable[[int, int], None]
"""Receives, after each batch, the number of deleted entities and the total."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention times of finished entities, in µs.

    None retains them permanently.

    `finished` applies to succeeded and cancelled jobs, flows, crews, and agent jobs, and to ended workers. `failures`
    applies to failed ones, dead letters, and abandoned workstreams. Entities with an idempotency key are also retained
    for `keys`, because the key is deleted with them.
    """

    finished_us: int | None = 7 * 86_400_000_000
    failures_us: int | None = 90 * 86_400_000_000
    keys_us: int | None = None

    @classmethod
    def of(cls, finished: Span | None, failures: Span | None, keys: Span | None) -> Retention:
        """Return the retention for durations as users write them."""
        return cls(*(None if span is None else span_us(span) for span in (finished, failures, keys)))

    def expiries(self, now: int) -> Expiries:
        """Return what can be deleted now, for each kind of entity."""
        ages = {**dict.fromkeys(FINISHED, self.finished_us), **dict.fromkeys(FAILURES, self.failures_us)}
        keyed = None if self.keys_us is None else now - self.keys_us
        ended = {} if self.finished_us is None else dict.fromkeys(_finals(WORKER), now - self.finished_us)
        return _expiries({state: now - age for state, age in ages.items() if age is not None}, ended, keyed)


def _expiries(jobs: dict[str, int], workers: dict[str, int], keyed: int | None, tenant: int | None = None) -> Expiries:
    """Return expiries in the order of deletion: jobs first.

    What contains jobs can depend on their deletion, so the other expiries also name the states of jobs.
    """
    others = [(one, _like(jobs, alike)) for one, alike in ENDED_LIKE.items()]
    found = [(JOB, jobs), *((one, {**jobs, **before} if before else {}) for one, before in others)]
    return [*((one, Expiry(before, keyed, tenant)) for one, before in found), (WORKER, Expiry(workers, None, tenant))]


def _like(jobs: Mapping[str, int], alike: Mapping[State, State]) -> dict[str, int]:
    return {own.name: jobs[job.name] for own, job in alike.items() if job.name in jobs}


@dataclass(slots=True)
class Swept:
    """What a sweep has deleted, or would delete.

    Entities are counted by state. Nested flows and crews are not counted. Requests, telemetry, unused blobs, and
    signals are counted in total.
    """

    jobs: Counter[str] = field(default_factory=Counter)
    workers: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    workstreams: Counter[str] = field(default_factory=Counter)
    crews: Counter[str] = field(default_factory=Counter)
    agent_jobs: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    telemetry: int = 0
    blobs: int = 0
    signals: int = 0

    def of(self, lifecycle: Lifecycle) -> Counter[str]:
        found: Counter[str] = getattr(self, lifecycle.table)
        return found

    @property
    def by_table(self) -> dict[str, Counter[str]]:
        """Counts by state of each table."""
        return {one.table: self.of(one) for one in (JOB, WORKER, *ENDED_LIKE)}

    @property
    def rows(self) -> int:
        return sum(counted.total() for counted in self.by_table.values())


async def sweep(store: Store, retention: Retention) -> Swept:
    """Delete everything that has expired, for all tenants."""
    return await _swept(store, retention.expiries(await store.now()))


async def prune(
    store: Store,
    tenant_id: int,
    older_than: Span,
    states: tuple[str, ...] = FINISHED,
    *,
    keyed: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Swept:
    """Delete a tenant's jobs that ended in these states before, and what ended like them.

    Workers that ended before are also deleted. `dry_run` only counts.
    """
    if unknown := [state for state in states if state not in _finals(JOB)]:
        raise BadInput(what=f"{unknown[0]!r} is no final state of a job; there are: {', '.join(_finals(JOB))}")
    before = await store.now() - span_us(older_than)
    workers = dict.fromkeys(_finals(WORKER), before)
    expiries = _expiries(dict.fromkeys(states, before), workers, before if keyed else None, tenant_id)
    count = await _counted(store, expiries)
    return count if dry_run else await _swept(store, expiries, progress, count.rows)


async def _counted(store: Store, expiries: Expiries) -> Swept:
    """Count what would be deleted now."""
    swept = Swept()
    for lifecycle, expiry in expiries:
        async for batch in _batches(store, lifecycle, expiry):
            swept.of(lifecycle).update(state for _, state in batch)
    return swept


async def _swept(store: Store, expiries: Expiries, progress: Progress | None = None, total: int = 0) -> Swept:
    """Delete batch by batch. The log is counted first, because it lacks the kind of a deleted job."""
    swept = Swept()
    await roll_up(store)
    for lifecycle, expiry in expiries:
        async for batch in _batches(store, lifecycle, expiry):
            await _rested(store.prune(lifecycle, [id for id, _ in batch], expiry))
            swept.of(lifecycle).update(state for _, state in batch)
            if progress:
                progress(swept.rows, max(total, swept.rows))
    await _tidy(store, swept)
    return swept


async def _batches(store: Store, lifecycle: Lifecycle, expiry: Expiry) -> AsyncIterator[Found]:
    """Yield batches from the oldest row to the first page that has nothing to delete."""
    after: int | None = 0 if expiry.before else None
    while after is not None:
        found, after = await store.prunable(lifecycle, expiry, after=after, limit=LOOKED_AT_ONCE)
        if lifecycle in WHOLE:
            async for batch in _whole(store, lifecycle, found):
                yield batch
        else:
            for batch in _parts(found, AT_ONCE):
                yield batch


async def _whole(store: Store, lifecycle: Lifecycle, found: Found) -> AsyncIterator[Found]:
    """Yield batches of flows or crews with everything inside them.

    A batch has about the usual number of rows, but at least one flow or crew. Inconsistent ones are skipped: the doctor
    finds them.
    """
    batch: Found = []
    full = 0
    for part in _parts(found, WHOLE_AT_ONCE):
        sizes = await store.retinues(lifecycle, [id for id, _ in part])
        for id, state in part:
            if batch and full + sizes.get(id, 0) > AT_ONCE:
                yield batch
                batch, full = [], 0
            if id in sizes:
                batch.append((id, state))
                full += sizes[id]
    if batch:
        yield batch


def _parts(found: Found, size: int) -> Iterator[Found]:
    return (found[first : first + size] for first in range(0, len(found), size))


async def _tidy(store: Store, swept: Swept) -> None:
    """Delete rows that have their own expiry. A further table with an age is one more line here."""
    swept.requests = await _until_done(lambda: store.forget_requests(AT_ONCE))
    await _until_done(lambda: store.forget_limits(AT_ONCE))
    swept.telemetry = await _until_done(lambda: store.forget_telemetry(AT_ONCE))
    sent_before = await store.now() - SIGNALS_US
    swept.signals = await _until_done(lambda: store.forget_signals(sent_before, AT_ONCE))
    told_before = await store.now() - DELIVERIES_US
    await _until_done(lambda: store.forget_deliveries(told_before, AT_ONCE))
    spent_before = await store.now() - BUDGETS_US
    await _until_done(lambda: store.forget_budgets(spent_before, AT_ONCE))
    unused_since = await store.now() - UNUSED_BLOBS_US
    swept.blobs = await _until_done(lambda: store.drop_unused_blobs(unused_since, AT_ONCE))


async def _until_done(batch: Callable[[], Awaitable[int]]) -> int:
    total = 0
    while done := await _rested(batch()):
        total += done
        if done < AT_ONCE:
            break
    return total


async def _rested(work: Awaitable[int]) -> int:
    """Run a batch, and then pause several times as long for other users of the database."""
    began = time.monotonic()
    done = await work
    await asyncio.sleep(max((time.monotonic() - began) * RESTS, SHORTEST_REST))
    return done


def _finals(lifecycle: Lifecycle) -> tuple[str, ...]:
    return tuple(state.name for state in lifecycle.states if state.final)


# Prune finished jobs, flows, and events from time to time. One process at a time does it for all workers.


DUTY = "retention"
EVERY_US = 3_600_000_000
LOOK_SECONDS = 600.0
FIRST_LOOK_SECONDS = 60.0


class Pruner:
    """Checks whether a sweep is due. Every process can have one; the database gives the duty to one at a time."""

    def __init__(self, store: Store, retention: Retention, chance: Callable[[], float]) -> None:
        self._store = store
        self._retention = retention
        self._chance = chance

    async def run(self) -> None:
        await asyncio.sleep(FIRST_LOOK_SECONDS * self._chance())
        while True:
            with contextlib.suppress(StoreError):  # unreachable: the next sweep prunes the rest
                await self.run_once()
            await asyncio.sleep(LOOK_SECONDS * (0.5 + self._chance()))

    async def run_once(self) -> bool:
        """Return whether this process had the duty and has done it."""
        ours = await self._store.take_duty(DUTY, EVERY_US)
        if ours:
            await sweep(self._store, self._retention)
        return ours

"""Retention: what has ended may go once it is old enough, is accounted for, and leaves its events behind."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.core.lifecycles import JOB, WORKER
from keptwork.store import NewJob, Store
from keptwork.store.contract.records import Expiry
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, log, moved, queued, running, undone, worker
from tests.conformance.times import SECOND, SetClock

ENDS = {"succeeded": "succeed", "failed": "fail", "cancelled": "cancel", "dead_lettered": "dead_letter"}


async def ended(store: Store, state: str = "succeeded", **fields: Any) -> int:
    """A fresh job that has run and ended so."""
    owner = await worker(store)
    (id,) = await store.enqueue([NewJob("kind", queue=f"of {owner}", **fields)])
    await claim(store, owner, 1, f"of {owner}", start=True)
    await moved(store, JOB, id, ENDS[state], by="operator" if state == "cancelled" else "holder")
    return id


def anything(now: int, **more: Any) -> Expiry:
    """Everything that ended before now."""
    return Expiry(dict.fromkeys(ENDS, now), **more)


async def prunable(store: Store, expiry: Expiry) -> list[int]:
    return [id for id, _ in (await store.prunable(JOB, expiry)).found]


@keeps(Reader.prunable, "The page lists those that retention may delete, and where to continue")
async def test_what_may_go_has_ended_before_the_moment_of_its_state(timed: Store, clock: SetClock) -> None:
    old = {state: await ended(timed, state) for state in ENDS}
    await running(timed, await worker(timed))
    await queued(timed)
    await clock.advance(SECOND)
    young = await ended(timed)
    await clock.advance(SECOND)
    everything = anything(clock.now - SECOND)
    assert await timed.prunable(JOB, everything) == ([(id, state) for state, id in old.items()], None)
    assert await prunable(timed, Expiry({"failed": clock.now})) == [old["failed"]]
    assert await prunable(timed, Expiry({})) == []
    assert await prunable(timed, anything(clock.now)) == [*old.values(), young]


@keeps(Reader.prunable, "Return one page of jobs, workers, agent jobs, crews, or flows in the order of their IDs")
async def test_what_may_go_is_read_page_by_page_past_what_stays(timed: Store, clock: SetClock) -> None:
    ids = [await ended(timed) if place % 2 else (await queued(timed))[0] for place in range(5)]
    await clock.advance(SECOND)
    found: list[int] = []
    after: int | None = 0
    pages = 0
    while after is not None:
        page, after = await timed.prunable(JOB, anything(clock.now), after=after, limit=2)
        found += [id for id, _ in page]
        pages += 1
    assert (found, pages) == ([ids[1], ids[3]], 3)


async def test_a_page_of_nothing_but_young_jobs_is_the_last(timed: Store, clock: SetClock) -> None:
    before = clock.now
    await clock.advance(SECOND)
    await queued(timed, 4)
    assert await timed.prunable(JOB, anything(before), limit=2) == ([], None)


async def test_a_job_with_a_key_stays_unless_keys_may_go_too(timed: Store, clock: SetClock) -> None:
    id = await ended(timed, key="order-17")
    await clock.advance(SECOND)
    assert await prunable(timed, anything(clock.now)) == []
    assert await timed.prune(JOB, [id], anything(clock.now)) == 0
    assert await prunable(timed, anything(clock.now, keyed_before=clock.now)) == [id]


@keeps(Reader.prunable, "A rerun stays while its original job exists, and a worker stays while it holds a job")
async def test_a_job_stays_while_the_one_it_runs_again_is_there(timed: Store, clock: SetClock) -> None:
    first = await ended(timed, "dead_lettered")
    second = await ended(timed, redriven_from=first)
    await clock.advance(SECOND)
    assert await prunable(timed, Expiry({"succeeded": clock.now})) == []
    assert await timed.prune(JOB, [first], anything(clock.now)) == 1
    assert await prunable(timed, Expiry({"succeeded": clock.now})) == [second]


@keeps(Reader.prunable, "A rerun stays while its original job exists, and a worker stays while it holds a job")
async def test_a_worker_stays_until_it_has_ended_and_holds_nothing(timed: Store, clock: SetClock) -> None:
    idle, holding, done = await worker(timed), await worker(timed), await worker(timed, "COMPLETED")
    (job,) = await running(timed, holding)
    await moved(timed, WORKER, holding, "terminate")
    await clock.advance(SECOND)
    expiry = Expiry({"COMPLETED": clock.now, "TERMINATED": clock.now})
    assert await timed.prunable(WORKER, expiry) == ([(done, "COMPLETED")], None)
    await moved(timed, JOB, job, "succeed", by="holder")
    assert await timed.prune(WORKER, [idle, holding, done], expiry) == 2
    assert [row["id"] for row in await timed.rows(WORKER, [idle, holding, done])] == [idle]


@keeps(
    Writer.prune,
    "Delete those of these entities that retention still allows, and record that in the same write",
    "Return their number",
    "Their events stay",
)
@keeps(Reader.pruned, "Return what retention has deleted so far, by tenant, entity, and state")
async def test_what_is_pruned_is_gone_and_accounted_for_and_its_events_stay(timed: Store, clock: SetClock) -> None:
    early, failed = await ended(timed), await ended(timed, "failed")
    await clock.advance(SECOND)
    late, unfinished = await ended(timed), (await queued(timed))[0]
    (last_of_all,) = [row["completed_at"] for row in await timed.rows(JOB, [late])]
    await clock.advance(SECOND)
    assert await timed.prune(JOB, [early], anything(clock.now)) == 1
    ids = [early, failed, late, unfinished]
    assert await timed.prune(JOB, ids, anything(clock.now)) == 2
    assert [row["id"] for row in await timed.rows(JOB, ids)] == [unfinished]
    (counts,) = [(p.rows, p.before) for p in await timed.pruned() if p.state == "succeeded"]
    assert counts == (2, last_of_all + 1)
    assert [(p.entity, p.state, p.rows) for p in await timed.pruned()] == [
        ("job", "failed", 1),
        ("job", "succeeded", 2),
    ]
    assert len(await log(timed, entity="job", entity_id=early)) == 4


@keeps(Writer.prune, "Delete those of these entities that retention still allows, and record that in the same write")
async def test_a_job_that_was_brought_back_after_it_was_read_stays(timed: Store, clock: SetClock) -> None:
    id = await ended(timed)
    await clock.advance(SECOND)
    expiry = anything(clock.now)
    assert await prunable(timed, expiry) == [id]
    row = await timed.get(JOB, id, None)
    assert row is not None
    await clock.advance(SECOND)
    assert await timed.prune(JOB, [id], Expiry({"succeeded": row["completed_at"]})) == 0
    assert await timed.pruned() == []


async def test_a_prune_that_is_undone_has_deleted_and_accounted_for_nothing(timed: Store, clock: SetClock) -> None:
    id = await ended(timed)
    await clock.advance(SECOND)
    async with undone(timed) as transaction:
        assert await transaction.prune(JOB, [id], anything(clock.now)) == 1
    assert (await timed.pruned(), len(await timed.rows(JOB, [id]))) == ([], 1)


async def test_each_tenant_has_its_own_account_and_can_be_pruned_alone(
    timed: Store, clock: SetClock, other_tenant: int
) -> None:
    ours, theirs = await ended(timed), await ended(timed, tenant_id=other_tenant)
    await clock.advance(SECOND)
    alone = anything(clock.now, tenant_id=other_tenant)
    assert await prunable(timed, alone) == [theirs]
    assert await timed.prune(JOB, [ours, theirs], alone) == 1
    assert await timed.prune(JOB, [ours, theirs], anything(clock.now)) == 1
    assert [(p.tenant_id, p.rows) for p in await timed.pruned()] == [(1, 1), (other_tenant, 1)]


@keeps(Writer.take_duty, "Return True to the first caller, then False to all callers until the interval has elapsed")
async def test_a_duty_is_one_askers_until_its_time_is_over(timed: Store, clock: SetClock) -> None:
    assert [await timed.take_duty("sweep", 2 * SECOND) for _ in range(3)] == [True, False, False]
    assert await timed.take_duty("another", SECOND)
    await clock.advance(2 * SECOND - 1)
    assert not await timed.take_duty("sweep", SECOND)
    await clock.advance(1)
    assert [await timed.take_duty("sweep", SECOND) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("state", ENDS)
async def test_the_database_itself_lets_only_the_ended_go(store: Store, state: str) -> None:
    """The statement names no state; what it may delete is what the guards of the tables let go."""
    id = await ended(store, state)
    far = 1 << 60
    assert await store.prune(JOB, [id, *await queued(store)], anything(far)) == 1

"""Children: made once with the step that names them, and their parent due with the end of the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Job, NewJob, Store, open_store
from keptwork.store.contract.checkpoints import Save
from keptwork.store.contract.store import Reader, Writer
from keptwork.store.contract.waits import ALL_CHILDREN, ANY_CHILD
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, Verbs, claim, decided, entity, moved, queued, worker
from tests.conformance.times import SetClock
from tests.conformance.waiting import LATER, beside, due
from tests.support.broken_sql import leave_out

OURS = 1
_families = count(1)


async def parent_of(store: Store, number: int) -> tuple[Job, list[int]]:
    """A running job and its children, running too."""
    owner, queue = await worker(store), f"family {next(_families)}"
    await queued(store, queue=queue)
    (job,) = await claim(store, owner, 1, queue, start=True)
    keys = await store.spawn(Save(job, "#spawn 1", ""), [NewJob("kind", queue=queue, parent_id=job.id)] * number)
    assert keys is not None
    await claim(store, owner, number, queue, start=True)
    return job, keys


async def end(store: Verbs, id: int, trigger: str = "succeed") -> None:
    await moved(store, JOB, id, trigger, by="holder" if trigger in ("succeed", "fail") else "operator")


async def wait(store: Verbs, job: Job, waits_for: str = ALL_CHILDREN, seen: int = 1) -> None:
    values = {"run_at": LATER, "waits_for": waits_for, "seen": seen}
    await moved(store, JOB, job.id, "snooze", by="holder", values=values)


# --- spawn


@keeps(
    Writer.spawn,
    "Enqueue children of a running job and store their IDs under the step's name, or do neither",
    "If the name already has a result, no job is enqueued",
    "Then the IDs of the first time are returned",
)
async def test_children_are_made_once_under_the_name_of_their_step(store: Store) -> None:
    job, first = await parent_of(store, 70)
    again = await store.spawn(Save(job, "#spawn 1", ""), [NewJob("other")] * 3)
    more = await store.spawn(Save(job, "#spawn 2", ""), [NewJob("kind", "[1]"), NewJob("kind", "[2]")])
    assert again == first
    assert more is not None
    assert len({*first, *more}) == 72
    rows = {row["id"]: row["payload"] for row in await store.rows(JOB, more, ("id", "payload"))}
    assert [rows[key] for key in more] == ["[1]", "[2]"]
    assert [kept.name for kept in await store.checkpoints(OURS, job.id)] == ["#spawn 1", "#spawn 2"]
    assert (await store.counts(JOB))[0] == 73


@keeps(Writer.spawn, "Return None if the claim no longer holds the job")
async def test_who_no_longer_holds_the_parent_makes_no_children(timed: Store, clock: SetClock) -> None:
    job, _ = await parent_of(timed, 1)
    await clock.advance(LEASE + 1)
    assert await timed.spawn(Save(job, "#spawn 2", ""), [NewJob("kind")]) is None
    assert await timed.spawn(Save(job, "#spawn 1", ""), [NewJob("kind")]) is None
    assert (await timed.counts(JOB))[0] == 2
    assert len(await timed.checkpoints(OURS, job.id)) == 1


# --- reading


@keeps(
    Reader.unfinished_children,
    "Return the IDs of the unfinished children of these jobs, in order, without those of other tenants",
)
async def test_unfinished_children_are_those_that_have_not_ended(store: Store) -> None:
    job, (a, b, c) = await parent_of(store, 3)
    other, (d,) = await parent_of(store, 1)
    await end(store, b)
    assert await store.unfinished_children(OURS, [job.id]) == [a, c]
    assert sorted(await store.unfinished_children(OURS, [job.id, other.id])) == sorted([a, c, d])
    assert await store.unfinished_children(OURS, [a]) == await store.unfinished_children(OURS, []) == []
    assert await store.unfinished_children(2, [job.id]) == []


@keeps(
    Reader.cancelled_parents, "Return at most `limit` cancelled jobs that have unfinished children, as (tenant, job)"
)
async def test_cancelled_parents_are_found_while_they_have_children_left(store: Store) -> None:
    assert await store.cancelled_parents(10) == []
    families = [await parent_of(store, 2) for _ in range(3)]
    assert await store.cancelled_parents(10) == []
    for job, _ in families[:2]:
        await end(store, job.id, "cancel")
    assert sorted(await store.cancelled_parents(10)) == sorted((OURS, job.id) for job, _ in families[:2])
    assert len(await store.cancelled_parents(1)) == 1
    for child in families[0][1]:
        await end(store, child)
    assert await store.cancelled_parents(10) == [(OURS, families[1][0].id)]


@keeps(
    Reader.stopped_waits,
    "Return at most `limit` jobs that wait despite a cancellation request while they ran, as (tenant, job)",
)
async def test_jobs_that_wait_although_they_were_asked_to_end_are_found(store: Store) -> None:
    families = [await parent_of(store, 1) for _ in range(4)]
    jobs = [job for job, _ in families]
    for job in jobs[:3]:
        assert await store.request_stop(job.id, OURS)
    assert await store.stopped_waits(10) == []
    for job in jobs[1:]:
        await wait(store, job)
    assert await store.stopped_waits(10) == [(OURS, jobs[1].id), (OURS, jobs[2].id)]
    assert await store.stopped_waits(1) == [(OURS, jobs[1].id)]
    await end(store, jobs[1].id, "cancel")
    assert await store.stopped_waits(10) == [(OURS, jobs[2].id)]


# --- waking


@keeps(Writer.apply, "A job that waits for its children is due when the last of them ends")
@pytest.mark.parametrize("last", ["succeed", "fail", "cancel", "dead_letter"])
async def test_a_parent_is_due_with_the_end_of_its_last_child_however_it_ends(store: Store, last: str) -> None:
    job, children = await parent_of(store, 3)
    await wait(store, job)
    for child in children[:2]:
        await end(store, child)
        assert not await due(store, job)
    await end(store, children[2], last)
    assert await due(store, job)


async def test_a_parent_of_a_child_that_goes_back_into_the_queue_waits_on(store: Store) -> None:
    job, (child,) = await parent_of(store, 1)
    await wait(store, job)
    await moved(store, JOB, child, "release", by="holder")
    assert not await due(store, job)


async def test_only_a_parent_that_waits_for_its_children_is_touched(store: Store) -> None:
    """One that runs, one that sleeps, one that has ended: none of them is made due."""
    for waits_for in (None, "sleep", "event go"):
        job, (child,) = await parent_of(store, 1)
        if waits_for:
            await wait(store, job, waits_for, 0)
        before = await entity(store, JOB, job.id)
        await end(store, child)
        after = await entity(store, JOB, job.id)
        assert (before["run_at"], before["waits_for"]) == (after["run_at"], after["waits_for"])
    ended, (child,) = await parent_of(store, 1)
    await end(store, ended.id)
    await end(store, child)
    assert (await entity(store, JOB, ended.id))["state"] == "succeeded"


async def test_who_waits_for_any_child_is_due_with_each(store: Store) -> None:
    job, children = await parent_of(store, 3)
    await wait(store, job, ANY_CHILD, 3)
    assert not await due(store, job)
    await end(store, children[1])
    assert await due(store, job)


@keeps(Writer.apply, "A job that starts to wait for something that has already happened is due immediately")
async def test_who_begins_to_wait_for_children_that_have_ended_is_due_at_once(store: Store) -> None:
    for waits_for, seen, ending in ((ALL_CHILDREN, 1, 2), (ANY_CHILD, 2, 1)):
        job, children = await parent_of(store, 2)
        for child in children[:ending]:
            await end(store, child)
        await wait(store, job, waits_for, seen)
        assert await due(store, job)


# --- races: one side is in the middle of its transaction, the other comes


Race = Callable[[Store], Awaitable[bool]]


async def two_last_children(store: Store) -> bool:
    job, (a, b) = await parent_of(store, 2)
    await wait(store, job)
    second = await decided(store, JOB, b, "succeed", by="holder")
    assert await beside(store, lambda transaction: end(transaction, a), lambda: store.apply([second])) == []
    return await due(store, job)


async def a_child_ends_before_the_wait_is_written(store: Store) -> bool:
    job, (child,) = await parent_of(store, 1)
    values = {"run_at": LATER, "waits_for": ALL_CHILDREN, "seen": 1}
    second = await decided(store, JOB, job.id, "snooze", by="holder", values=values)
    assert await beside(store, lambda transaction: end(transaction, child), lambda: store.apply([second])) == []
    return await due(store, job)


async def a_child_ends_while_the_wait_is_written(store: Store) -> bool:
    job, (child,) = await parent_of(store, 1)
    second = await decided(store, JOB, child, "succeed", by="holder")
    assert await beside(store, lambda transaction: wait(transaction, job), lambda: store.apply([second])) == []
    return await due(store, job)


RACES = [two_last_children, a_child_ends_before_the_wait_is_written, a_child_ends_while_the_wait_is_written]


@pytest.mark.parametrize("race", RACES)
async def test_neither_of_two_that_come_at_once_thinks_the_other_will_wake_the_parent(store: Store, race: Race) -> None:
    assert await race(store)


async def test_the_test_above_notices_a_store_that_locks_no_parents(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, "lock_jobs", "{for_change}")
    monkeypatch.setattr("tests.conformance.waiting.PATIENCE", 10)
    store = await open_store(emptied_database)
    try:
        assert [await race(store) for race in RACES] == [False, False, False]
    finally:
        await store.close()


async def test_and_one_that_does_not_look_again_when_a_wait_is_written(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.store.contract.waits._note_wait", lambda found, change: None)
    store = await open_store(database_url)
    try:
        assert not await a_child_ends_before_the_wait_is_written(store)
    finally:
        await store.close()


async def test_families_that_end_in_each_others_way_do_not_wait_in_a_circle(store: Store) -> None:
    """Two workers write batches that hold children and parents crosswise, many times."""
    for _ in range(10):
        (p1, (c1,)), (p2, (c2,)) = await parent_of(store, 1), await parent_of(store, 1)
        values = {"run_at": LATER, "waits_for": ALL_CHILDREN, "seen": 1}
        one = [
            await decided(store, JOB, c1, "succeed", by="holder"),
            await decided(store, JOB, p2.id, "snooze", by="holder", values=values),
        ]
        other = [
            await decided(store, JOB, c2, "succeed", by="holder"),
            await decided(store, JOB, p1.id, "snooze", by="holder", values=values),
        ]
        late, also_late = await asyncio.gather(store.apply(one), store.apply(other))
        assert late == also_late == []
        assert await due(store, p1)
        assert await due(store, p2)


async def test_jobs_without_a_parent_cost_one_statement_as_before(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(emptied_database)
    try:
        ids = [job.id for job in await _running(store, 3)]
        changes = [await decided(store, JOB, id, "succeed", by="holder") for id in ids]
        asked: list[str] = []
        shipped = type(store)._fetch  # type: ignore[attr-defined]

        async def fetch(self: Any, named: str, /, **values: Any) -> Any:
            asked.append(named)
            return await shipped(self, named, **values)

        monkeypatch.setattr(type(store), "_fetch", fetch)
        assert await store.apply(changes) == []
        assert asked == []
    finally:
        await store.close()


async def _running(store: Store, number: int) -> list[Job]:
    owner = await worker(store)
    await queued(store, number)
    return await claim(store, owner, number, start=True)

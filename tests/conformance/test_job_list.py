"""Jobs and queues as operators read them: a page of those that match, and what waits where."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import JobFilter, NewJob, Store
from keptwork.store.contract import jobs_list
from keptwork.store.contract.records import QueueSummary
from keptwork.store.contract.store import Reader
from keptwork.store.dialect import POSTGRES, SQLITE, Dialect
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, entity, moved, queued, running, worker
from tests.conformance.times import SECOND, SetClock


async def found(store: Reader, **wanted: Any) -> list[int]:
    rows = await store.jobs(JobFilter(**wanted), newest_first=False, columns=("id",))
    return [row["id"] for row in rows]


@keeps(Reader.jobs, "Return one page of the matching jobs in the order of their IDs")
async def test_jobs_come_in_the_order_of_their_ids_either_way(store: Store) -> None:
    ids = sorted(await queued(store, 5))
    assert [row["id"] for row in await store.jobs()] == ids[::-1]
    assert [row["id"] for row in await store.jobs(newest_first=False)] == ids
    assert [row["id"] for row in await store.jobs(limit=2)] == ids[:2:-1]


@keeps(Reader.jobs, "The rows are whole or have only the named columns")
async def test_jobs_are_whole_or_only_the_columns_named(store: Store) -> None:
    (id,) = await queued(store)
    assert await store.jobs() == [await entity(store, JOB, id)]
    assert await store.jobs(columns=("kind", "id")) == [{"kind": "kind", "id": id}]


@keeps(Reader.jobs, "Reading on from the last ID never returns a job twice")
async def test_page_after_page_there_is_every_job_once(store: Store) -> None:
    ids = sorted(await queued(store, 7))
    for newest_first in (True, False):
        seen: list[int] = []
        while page := await store.jobs(after=seen[-1] if seen else None, limit=3, newest_first=newest_first):
            seen += [row["id"] for row in page]
        assert seen == (ids[::-1] if newest_first else ids)


async def test_jobs_that_come_meanwhile_do_not_shift_the_pages(store: Store) -> None:
    ids = sorted(await queued(store, 4))
    first = [row["id"] for row in await store.jobs(limit=2)]
    await queued(store, 2)
    assert first + [row["id"] for row in await store.jobs(after=first[-1], limit=5)] == ids[::-1]


FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"queue": "q"}, {"queue": "q"}),
    ({"correlation_id": "c-1"}, {"correlation_id": "c-1"}),
    ({"redriven_from": 77}, {"redriven_from": (5, 77)}),
]


@pytest.mark.parametrize(("fields", "wanted"), FIELDS, ids=["queue", "correlation", "redriven_from"])
async def test_what_is_asked_for_narrows(store: Store, fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    await queued(store, 2)
    ids = await queued(store, 2, **fields)
    assert await found(store, **wanted) == sorted(ids)


async def test_a_kind_narrows_and_so_does_a_tenant(store: Store, other_tenant: int) -> None:
    a, b, theirs = await store.enqueue([NewJob("a"), NewJob("b"), NewJob("a", tenant_id=other_tenant)])
    assert await found(store, kind="b") == [b]
    assert await found(store, tenant_id=1, kind="a") == [a]
    assert await found(store, tenant_id=other_tenant) == [theirs]


async def test_states_narrow_one_or_several_or_none(store: Store) -> None:
    owner = await worker(store)
    (started,) = await running(store, owner)
    (dead,) = await running(store, owner)
    await moved(store, JOB, dead, "dead_letter", by="holder", reason="policy_violation")
    (waiting,) = await queued(store)
    assert await found(store, states=("dead_lettered",)) == [dead]
    assert await found(store, states=("queued", "running")) == sorted([waiting, started])
    assert await found(store, states=()) == []


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=lambda dialect: dialect.name)
def test_a_state_that_is_not_declared_never_gets_into_a_statement(dialect: Dialect) -> None:
    with pytest.raises(KeyError, match="no state"):
        jobs_list.page(dialect, JobFilter(states=("' OR 1=1 --",)), None, 1, True, ("id",))


async def test_the_reason_and_the_time_of_the_end_narrow(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    first, second = await running(timed, owner, 2)
    await moved(timed, JOB, first, "dead_letter", by="holder", reason="timeout")
    before = clock.now
    await clock.advance(SECOND)
    await moved(timed, JOB, second, "dead_letter", by="holder", reason="policy_violation")
    assert await found(timed, reason="timeout") == [first]
    assert await found(timed, ended_since=before + SECOND) == [second]
    assert await found(timed, ended_before=before + SECOND) == [first]


async def test_the_time_when_they_were_made_narrows(timed: Store, clock: SetClock) -> None:
    (first,) = await queued(timed)
    await clock.advance(SECOND)
    (second,) = await queued(timed)
    made = [(await timed.get(JOB, key, None) or {})["created_at"] for key in (first, second)]
    assert await found(timed, made_since=made[1]) == [second]
    assert await found(timed, made_before=made[1]) == [first]


async def test_those_with_a_worker_come_in_the_order_of_their_ids_too(store: Store) -> None:
    """They are found by another index than the rest."""
    ids = sorted(await running(store, await worker(store), 3))
    rows = await store.jobs(JobFilter(states=jobs_list.LEASED), limit=2, columns=("id",))
    assert [row["id"] for row in rows] == ids[:0:-1]
    assert await found(store, states=jobs_list.LEASED) == ids


async def test_what_was_run_again_is_told_from_what_was_not(store: Store) -> None:
    old, other = sorted(await queued(store, 2))
    (new,) = await queued(store, redriven_from=old)
    assert await found(store, redriven=True) == [old]
    assert await found(store, redriven=False) == [other, new]
    assert await found(store, redriven_from=()) == []
    assert (await entity(store, JOB, new))["redriven_from"] == old


@keeps(Reader.queues, "Return every queue of the tenant that has jobs or was ever paused")
async def test_every_queue_that_has_jobs_or_was_ever_paused_is_listed(store: Store, other_tenant: int) -> None:
    await queued(store, queue="b")
    await queued(store, queue="theirs", tenant_id=other_tenant)
    await store.set_queue_paused("a", True)
    await store.set_queue_paused("c", True)
    await store.set_queue_paused("c", False)
    await store.set_queue_paused("theirs too", True, other_tenant)
    assert [queue.name for queue in await store.queues(1)] == ["a", "b", "c"]
    assert [queue.name for queue in await store.queues(other_tenant)] == ["theirs", "theirs too"]


@keeps(
    Reader.queues,
    "Each has its number of jobs per state, the due time of its first claimable job, the time when it was "
    "paused, and the number of queued jobs that something other than a limit or a quota holds",
)
async def test_a_queue_is_summed_up(timed: Store, clock: SetClock) -> None:
    owner, start = await worker(timed), clock.now
    await store_mixed(timed)
    await clock.advance(SECOND)
    await queued(timed, 2, queue="q")
    await timed.set_queue_paused("q", True)
    await clock.advance(SECOND)
    assert await timed.queues(1) == [QueueSummary("q", {"queued": 5}, start, start + SECOND, 1)]
    await timed.set_queue_paused("q", False)
    assert len(await claim(timed, owner, 1, "q")) == 1
    assert await timed.queues(1) == [QueueSummary("q", {"queued": 4, "assigned": 1}, start + SECOND, None, 1)]


@keeps(Reader.queues, "With `unfinished_only`, finished jobs are not counted")
async def test_of_what_has_not_ended_the_same_is_summed_up_as_of_everything(timed: Store, other_tenant: int) -> None:
    owner = await worker(timed)
    await store_mixed(timed)
    await queued(timed, queue="q", held_by="limit", limit_key="*:kind")
    await queued(timed, queue="q", tenant_id=other_tenant, delay_us=SECOND)
    await timed.set_queue_paused("never used", True)
    (taken,) = await claim(timed, owner, 1, "q", start=True)
    whole = await timed.queues(1)
    assert whole == await timed.queues(1, unfinished_only=True)
    assert [queue.held for queue in whole] == [0, 1]
    await moved(timed, JOB, taken.id, "succeed", by="holder")
    left = {queue.name: queue.jobs for queue in await timed.queues(1, unfinished_only=True)}
    assert left == {"never used": {}, "q": {"queued": 3}}


async def store_mixed(store: Store) -> None:
    """One that is due, one that is held back, one that is not due yet."""
    await store.enqueue(
        [NewJob("a", queue="q"), NewJob("b", queue="q", held_by="tool"), NewJob("c", queue="q", delay_us=9 * SECOND)]
    )


async def test_a_queue_in_which_nothing_is_due_has_nothing_waiting(timed: Store) -> None:
    await queued(timed, delay_us=SECOND)
    await queued(timed, held_by="tool")
    assert await timed.queues(1) == [QueueSummary("default", {"queued": 2}, None, None, 1)]

"""Counters: added up, each tenant's by itself, and moved on together with whoever counts the log."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.core import metrics
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.core.metrics import bucket_of
from keptwork.errors import BadInput
from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.events_digest import MoveCount
from keptwork.store.contract.records import Counter, Progress
from keptwork.store.contract.store import Reader, Writer
from keptwork.store.contract.store import Store as Promises
from tests.conformance.by_hand import Hand
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, moved, queued, running, settled, undone, worker
from tests.conformance.times import SECOND, SetClock

OURS, THEIRS = 1, 2


def one(value: int = 1, name: str = "seen", tenant_id: int = OURS) -> Counter:
    return Counter(tenant_id, name, '{"kind":"é \\"x\\""}', value)


@keeps(Writer.count, "Add these values to the counters")
@keeps(Reader.counters, "Return all counters of a tenant")
async def test_what_is_counted_is_added_up_for_each_tenant(store: Store) -> None:
    assert await store.count([one(2), one(3), one(1, "other"), one(7, tenant_id=THEIRS)])
    assert await store.count([one(10)])
    assert await store.count([])
    assert await store.counters(OURS) == [one(1, "other"), one(15)]
    assert await store.counters(THEIRS) == [one(7, tenant_id=THEIRS)]
    assert await store.counters(3) == []


async def test_many_who_count_at_once_lose_nothing(store: Store) -> None:
    rows = [one(1, f"name {number}") for number in range(20)]
    await asyncio.gather(*(store.count(rows[turn:] + rows[:turn]) for turn in range(20)))
    assert {row.value for row in await store.counters(OURS)} == {20}


async def test_what_an_undone_transaction_counted_is_not_there(store: Store) -> None:
    async with undone(store) as transaction:
        await transaction.count([one()], progress=Progress("r", None, "1"))
    assert await store.counters(OURS) == []
    assert await store.log_position("r") is None


@keeps(
    Writer.count,
    "With `progress`, add them only if that reader of the log is still at its start cursor, and advance the "
    "reader in the same write",
    "Return False and add nothing if another caller advanced it first",
)
@keeps(Reader.log_position, "Return the cursor that a reader of the log has reached, or None if it has not started")
async def test_a_reader_moves_on_only_from_where_it_stands(store: Store) -> None:
    assert await store.log_position("r") is None
    assert await store.count([one()], progress=Progress("r", None, "5"))
    assert not await store.count([one()], progress=Progress("r", None, "5"))
    assert not await store.count([one()], progress=Progress("r", "4", "6"))
    assert (await store.log_position("r"), await store.counters(OURS)) == ("5", [one()])
    assert await store.count([one()], progress=Progress("r", "5", "6"))
    assert await store.count([], progress=Progress("another", None, "1"))
    assert (await store.log_position("r"), await store.counters(OURS)) == ("6", [one(2)])


async def test_of_many_who_move_on_from_one_place_one_does(store: Store) -> None:
    for after, upto in ((None, "1"), ("1", "2")):
        first = await asyncio.gather(*(store.count([one()], progress=Progress("r", after, upto)) for _ in range(8)))
        assert sum(first) == 1
    assert await store.counters(OURS) == [one(2)]


async def digested(store: Store, limit: int = 1000) -> list[MoveCount]:
    await settled(store)
    return (await store.digest(None, limit)).moves


@keeps(
    Reader.digest,
    "Return the next events in commit order, counted in groups",
    "Each group has the time that its entities spent in their previous state",
)
async def test_a_digest_tells_how_long_a_state_lasted(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    await timed.enqueue([NewJob("slow", delay_us=2 * SECOND)])
    await clock.advance(5 * SECOND)
    (job,) = await claim(timed, owner, start=True)
    await clock.advance(7 * SECOND)
    await moved(timed, JOB, job.id, "succeed", by="holder")
    by_trigger = {move.trigger: move for move in await digested(timed) if move.entity == "job"}
    assert (by_trigger["enqueue"].lasted, by_trigger["enqueue"].from_state) == (None, None)
    claimed, succeeded = by_trigger["claim"], by_trigger["succeed"]
    # A claim that starts its jobs makes two moves, the first a microsecond before the second.
    assert abs(claimed.lasted_us - 5 * SECOND) <= 2
    assert abs(claimed.waited_us - 3 * SECOND) <= 2
    assert (claimed.lasted, claimed.waited) == (bucket_of(5 * SECOND), bucket_of(3 * SECOND))
    assert abs(succeeded.lasted_us - 7 * SECOND) <= 2
    assert (succeeded.kind, succeeded.waited, succeeded.from_state) == ("slow", None, "running")


async def test_a_digest_groups_what_is_alike(store: Store, other_tenant: int) -> None:
    await queued(store, 5)
    await queued(store, 2, tenant_id=other_tenant)
    await worker(store, "PAUSED")
    found = {(move.tenant_id, move.entity, move.kind, move.trigger): move.times for move in await digested(store)}
    assert found == {
        (OURS, "job", "kind", "enqueue"): 5,
        (other_tenant, "job", "kind", "enqueue"): 2,
        (OURS, "worker", "", "register"): 1,
        (OURS, "worker", "", "start_task"): 1,
        (OURS, "worker", "", "pause"): 1,
    }


@keeps(Reader.digest, "Reading on from the digest's cursor counts every event once")
@pytest.mark.parametrize("page", [1, 3, 7])
async def test_read_on_page_by_page_every_event_is_counted_once(store: Store, page: int) -> None:
    await running(store, await worker(store), 5)
    await settled(store)
    cursor, pages, total = None, [], await store.event_count()
    while (digest := await store.digest(cursor, page)).events:
        cursor = digest.cursor
        pages.append(digest.events)
    assert sum(pages) == total == 16
    assert pages[:-1] == [page] * (len(pages) - 1)
    assert digest == ([], 0, None)
    newest = (await store.events(newest_first=True, limit=1))[0]
    assert cursor == newest.cursor


async def test_a_cursor_that_is_none_is_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="no event cursor"):
        await store.digest("here", 10)


async def test_a_note_does_not_end_the_time_in_a_state(timed: Store, clock: SetClock, hand: Hand) -> None:
    (id,) = await queued(timed)
    await clock.advance(2 * SECOND)
    await hand.run(f"UPDATE jobs SET seq = seq + 1, move = 'compensate' WHERE id = {id}")
    await clock.advance(3 * SECOND)
    await moved(timed, JOB, id, "cancel")
    (cancelled,) = [move for move in await digested(timed) if move.trigger == "cancel"]
    assert cancelled.lasted == bucket_of(5 * SECOND)


async def test_the_wait_of_a_job_that_was_put_back_is_not_told_from_a_later_one(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    await queued(timed)
    (first,) = await claim(timed, owner, start=True)
    await clock.advance(SECOND)
    await moved(timed, JOB, first.id, "retry", by="holder", values={"delay_us": 8 * SECOND})
    await clock.advance(9 * SECOND)
    await claim(timed, owner, start=True)
    claims = [move for move in await digested(timed) if move.trigger == "claim"]
    assert sorted(move.waited or 0 for move in claims) == [0, bucket_of(SECOND)]


async def test_a_job_that_is_gone_has_no_kind(store: Store, hand: Hand) -> None:
    (id,) = await queued(store)
    await moved(store, JOB, id, "cancel")
    await hand.run(f"DELETE FROM jobs WHERE id = {id}")
    assert {move.kind for move in await digested(store)} == {None}


@keeps(
    Reader.job_moves_since,
    "Return the number of moves of a tenant's jobs by trigger, from `since` and before `until` if given",
)
async def test_moves_since_a_point_in_time(timed: Store, clock: SetClock, other_tenant: int) -> None:
    await queued(timed)
    await clock.advance(SECOND)
    since = await timed.now()
    await queued(timed, 2)
    await queued(timed, 4, tenant_id=other_tenant)
    await claim(timed, await worker(timed), 1, tenant_id=OURS)
    assert await timed.job_moves_since(OURS, since) == {"enqueue": 2, "claim": 1}
    assert await timed.job_moves_since(other_tenant, since) == {"enqueue": 4}
    assert await timed.job_moves_since(OURS, since - SECOND, since) == {"enqueue": 1}
    assert await timed.job_moves_since(OURS, since - SECOND, since + SECOND) == {"enqueue": 3, "claim": 1}


# --- what the store counts of itself


def names(counters: list[Counter]) -> dict[str, int]:
    return {f"{row.name} {row.labels}": row.value for row in counters}


@keeps(
    Promises.tally,
    "Request figures of this store that are not among the counters yet",
    "Closing the store adds them",
)
async def test_closing_a_store_adds_what_was_asked_of_it_to_the_counters(database_url: str) -> None:
    store = await open_store(database_url)
    owner = await worker(store)
    await store.enqueue([NewJob("kind", key="a"), NewJob("kind"), NewJob("kind", key="b"), NewJob("kind", key="a")])
    assert await store.recall(OURS, "POST /jobs", "k", "h") is None
    (job,) = await claim(store, owner, 1)
    await claim(store, owner, 1, "nothing here")
    await store.renew(owner, [(job.id, job.epoch), (job.id + 1, 0)], 60 * SECOND)
    change = await moved(store, JOB, job.id, "start", by="holder")
    assert await store.apply([change._replace(actor="another")]) != []
    assert await store.counters(OURS) == []
    await store.close()
    again = await open_store(database_url)
    assert names(await again.counters(OURS)) == {
        'keptwork_claim_conflicts_total {"entity":"job","trigger":"start"}': 1,
        'keptwork_idempotency_lookups_total {"door":"enqueue","outcome":"hit"}': 1,
        'keptwork_idempotency_lookups_total {"door":"enqueue","outcome":"miss"}': 2,
        'keptwork_idempotency_lookups_total {"door":"request","outcome":"miss"}': 1,
    }
    assert names(await again.counters(metrics.ENGINE)) == {
        'keptwork_claim_calls_total {"outcome":"empty"}': 1,
        'keptwork_claim_calls_total {"outcome":"jobs"}': 1,
        'keptwork_lease_renewals_total {"outcome":"kept"}': 1,
        'keptwork_lease_renewals_total {"outcome":"lost"}': 1,
    }
    await again.close()


async def test_a_store_that_was_asked_nothing_worth_counting_writes_nothing_on_closing(
    database_url: str, hand: Hand
) -> None:
    store = await open_store(database_url)
    await store.create(WORKER, name="ann", incarnation="i-1", workspace_id="here")
    await queued(store, 3)
    assert not store.tally.take()
    await store.close()
    assert await hand.run("SELECT * FROM counters") == []

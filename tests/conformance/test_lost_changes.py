"""Changes that come too late, come twice, or come together: apply's compare-and-set and its fence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keptwork.core.lifecycles import JOB, WORKER, Change
from keptwork.errors import StoreError
from keptwork.store import Store
from keptwork.store.contract.store import Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, claim, decided, entity, log, moved, queued, running, worker
from tests.conformance.times import SECOND, SetClock


async def assert_lost(store: Store, change: Change) -> None:
    """The change is returned, the row is as it was, and the log has not grown."""
    before = await entity(store, change.lifecycle, change.id), await store.event_count()
    assert await store.apply([change]) == [change]
    assert (await entity(store, change.lifecycle, change.id), await store.event_count()) == before


@pytest.mark.parametrize(
    "stale",
    [
        {"seq": 2},
        {"seq": 4},
        {"epoch": 1},
        {"from_state": "assigned"},
        {"owner": 12345},
        {"tenant_id": 2},
        {"id": 12345},
    ],
    ids=str,
)
@keeps(Writer.apply, "Changes that are too late are returned and have no effect")
async def test_a_change_that_is_wrong_in_one_thing_changes_nothing(store: Store, stale: dict[str, Any]) -> None:
    (id,) = await running(store, await worker(store))
    change = await decided(store, JOB, id, "succeed", by="holder", actor="late")
    before = await entity(store, JOB, id), await store.event_count()
    wrong = change._replace(**stale)
    assert await store.apply([wrong]) == [wrong]
    assert (await entity(store, JOB, id), await store.event_count()) == before
    assert await store.apply([change]) == []


@keeps(Writer.apply, "Changes that are too late are returned and have no effect")
async def test_of_two_changes_decided_on_the_same_record_the_second_is_lost(store: Store) -> None:
    (id,) = await running(store, await worker(store))
    succeed = await decided(store, JOB, id, "succeed", by="holder")
    cancel = await decided(store, JOB, id, "cancel")
    assert await store.apply([cancel]) == []
    await assert_lost(store, succeed)


async def test_a_worker_whose_job_was_claimed_anew_by_itself_is_fenced_by_the_epoch(store: Store) -> None:
    owner = await worker(store)
    (id,) = await running(store, owner)
    stale = await decided(store, JOB, id, "succeed", by="holder")
    await moved(store, JOB, id, "release", by="holder")
    await claim(store, owner)
    await moved(store, JOB, id, "start", by="holder")
    row = await entity(store, JOB, id)
    assert (row["state"], row["owner"], row["epoch"]) == ("running", owner, stale.epoch + 1)
    await assert_lost(store, stale._replace(seq=row["seq"]))


async def test_a_holder_whose_lease_is_over_changes_nothing_though_nobody_took_the_job(
    timed: Store, clock: SetClock
) -> None:
    (id,) = await running(timed, await worker(timed))
    change = await decided(timed, JOB, id, "succeed", by="holder")
    lease_until = (await entity(timed, JOB, id))["lease_until"]
    await clock.advance(lease_until - clock.now)
    await assert_lost(timed, change)
    await clock.advance(-SECOND)


async def test_a_reaper_changes_nothing_while_the_lease_lasts(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (id,) = await running(timed, owner)
    await clock.advance(2 * LEASE)
    expire = await decided(timed, JOB, id, "expire", by="reaper")
    await clock.advance(-2 * LEASE)
    await timed.renew(owner, [(id, 0)], 9 * LEASE)
    await assert_lost(timed, expire)


async def test_a_reaper_has_no_right_over_a_job_nobody_leased(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (id,) = await running(timed, owner)
    await clock.advance(2 * LEASE)
    change = await decided(timed, JOB, id, "dead_letter", by="reaper")
    await moved(timed, JOB, id, "expire", by="reaper")
    row = await entity(timed, JOB, id)
    await assert_lost(timed, change._replace(seq=row["seq"], epoch=row["epoch"], from_state=row["state"]))


@keeps(Writer.apply, "A repeated change by the same actor counts as written")
async def test_the_same_change_by_the_same_actor_a_second_time_counts_as_written(store: Store) -> None:
    (id,) = await running(store, await worker(store))
    change = await decided(store, JOB, id, "succeed", by="holder", actor="w:1", values={"result": "1"})
    assert await store.apply([change]) == []
    before = await entity(store, JOB, id), await store.event_count()
    assert await store.apply([change]) == []
    assert (await entity(store, JOB, id), await store.event_count()) == before


async def test_it_counts_as_written_also_when_the_record_has_moved_on_since(store: Store) -> None:
    id = await worker(store)
    change = await decided(store, WORKER, id, "start_task", actor="ann")
    await store.apply([change])
    await moved(store, WORKER, id, "pause")
    await moved(store, WORKER, id, "resume")
    before = await entity(store, WORKER, id), await store.event_count()
    assert await store.apply([change]) == []
    assert (await entity(store, WORKER, id), await store.event_count()) == before


@pytest.mark.parametrize(("first", "second"), [("ann", "bob"), ("ann", None), (None, "bob")])
async def test_the_same_change_by_another_actor_came_too_late(
    store: Store, first: str | None, second: str | None
) -> None:
    (id,) = await queued(store)
    change = await decided(store, JOB, id, "cancel")
    assert await store.apply([change._replace(actor=first)]) == []
    await assert_lost(store, change._replace(actor=second))


async def test_another_change_by_the_same_actor_came_too_late(store: Store) -> None:
    (id,) = await running(store, await worker(store))
    succeed = await decided(store, JOB, id, "succeed", by="holder", actor="ann")
    fail = await decided(store, JOB, id, "fail", by="holder", actor="ann")
    assert await store.apply([succeed]) == []
    await assert_lost(store, fail)


async def test_of_many_who_make_the_same_move_at_once_one_wins(store: Store) -> None:
    (id,) = await running(store, await worker(store))
    change = await decided(store, JOB, id, "succeed", by="holder")
    rivals = [change._replace(actor=f"rival {number}") for number in range(8)]
    lost = await asyncio.gather(*[store.apply([rival]) for rival in rivals])
    assert sorted(map(len, lost)) == [0] + [1] * 7
    assert len(await log(store, type="job_succeeded")) == 1


@keeps(Writer, "Each takes full effect or none, and returns only when its changes are on disk")
async def test_moves_of_all_kinds_in_one_call_are_written_together(store: Store) -> None:
    owner = await worker(store)
    first, second, third = await running(store, owner, 3)
    (waiting,) = await queued(store)
    changes = [
        await decided(store, JOB, first, "succeed", by="holder", values={"result": "1"}),
        await decided(store, JOB, second, "fail", by="holder", values={"error": "e"}),
        await decided(store, JOB, waiting, "cancel"),
        await decided(store, WORKER, owner, "start_task"),
        await decided(store, JOB, third, "succeed", by="holder", values={"result": "2"}),
    ]
    assert await store.apply(changes) == []
    states = [(await entity(store, JOB, id))["state"] for id in (first, second, third, waiting)]
    assert states == ["succeeded", "failed", "succeeded", "cancelled"]
    assert [(await entity(store, JOB, id))["result"] for id in (first, third)] == ["1", "2"]
    assert (await entity(store, WORKER, owner))["state"] == "RUNNING"


async def test_a_lost_change_does_not_hold_up_those_beside_it(store: Store) -> None:
    first, second, third = await running(store, await worker(store), 3)
    changes = [await decided(store, JOB, id, "succeed", by="holder") for id in (first, second, third)]
    await moved(store, JOB, second, "cancel")
    assert await store.apply(changes) == [changes[1]]
    assert [(await entity(store, JOB, id))["state"] for id in (first, second, third)] == [
        "succeeded",
        "cancelled",
        "succeeded",
    ]


async def test_several_moves_of_one_record_in_one_call_follow_each_other(store: Store) -> None:
    id = await worker(store)
    start = await decided(store, WORKER, id, "start_task")
    pause, resume = WORKER.move("pause"), WORKER.move("resume")
    pauses = [
        start._replace(move=move, from_state=state, seq=seq)
        for move, state, seq in ((pause, "RUNNING", 2), (resume, "PAUSED", 3), (pause, "RUNNING", 4))
    ]
    assert await store.apply([start, *pauses]) == []
    assert [event.trigger for event in await log(store)] == ["register", "start_task", "pause", "resume", "pause"]


@keeps(Writer, "Each takes full effect or none, and returns only when its changes are on disk")
async def test_a_change_the_database_refuses_undoes_the_whole_call(store: Store) -> None:
    (id,) = await running(store, await worker(store))
    (waiting,) = await queued(store)
    good = await decided(store, JOB, id, "succeed", by="holder")
    forged = (await decided(store, JOB, waiting, "cancel"))._replace(move=JOB.move("succeed"))
    before = await store.event_count()
    with pytest.raises(StoreError, match="no declared move of a job"):
        await store.apply([good, forged])
    assert (await entity(store, JOB, id))["state"] == "running"
    assert (await entity(store, JOB, waiting))["state"] == "queued"
    assert await store.event_count() == before

"""Queues: paused and served again, each tenant's by itself."""

from __future__ import annotations

from keptwork.store import NewJob, Store
from keptwork.store.contract.store import Writer
from tests.conformance.by_hand import Hand
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, queued, worker
from tests.conformance.times import SECOND, SetClock


@keeps(Writer.set_queue_paused, "Pause or resume a queue from the next claim on")
async def test_from_the_next_claim_on_a_paused_queue_is_not_served(store: Store) -> None:
    owner = await worker(store)
    first, second = await queued(store, 2)
    assert [job.id for job in await claim(store, owner, 1)] == [first]
    await store.set_queue_paused("default", True)
    assert await claim(store, owner) == []
    await store.set_queue_paused("default", False)
    assert [job.id for job in await claim(store, owner)] == [second]


async def test_the_other_queues_are_served_meanwhile(store: Store) -> None:
    ids = await store.enqueue([NewJob("a", queue="shut"), NewJob("b", queue="open")])
    await store.set_queue_paused("shut", True)
    assert [job.id for job in await claim(store, await worker(store), 9, "shut", "open")] == ids[1:]


async def test_jobs_enter_a_paused_queue_and_wait_there(store: Store) -> None:
    await store.set_queue_paused("default", True)
    ids = await queued(store, 2)
    await store.set_queue_paused("default", False)
    assert [job.id for job in await claim(store, await worker(store))] == ids


@keeps(Writer.set_queue_paused, "Repeating the call changes nothing")
async def test_asking_twice_changes_nothing(timed: Store, clock: SetClock, hand: Hand) -> None:
    await timed.set_queue_paused("default", True)
    before = await hand.run("SELECT tenant_id, name, paused_at FROM queues")
    await clock.advance(SECOND)
    await timed.set_queue_paused("default", True)
    assert (
        await hand.run("SELECT tenant_id, name, paused_at FROM queues")
        == before
        == [(1, "default", clock.now - SECOND)]
    )
    await timed.set_queue_paused("default", False)
    await timed.set_queue_paused("default", False)
    assert await hand.run("SELECT paused_at FROM queues") == [(None,)]


async def test_a_queue_nobody_has_heard_of_may_be_resumed(store: Store) -> None:
    await store.set_queue_paused("default", False)
    await queued(store)
    assert len(await claim(store, await worker(store))) == 1


async def test_a_tenants_pause_does_not_stop_the_queue_of_that_name_of_another(store: Store, other_tenant: int) -> None:
    ours, _ = await store.enqueue([NewJob("a"), NewJob("b", tenant_id=other_tenant)])
    await store.set_queue_paused("default", True, tenant_id=other_tenant)
    assert [job.id for job in await claim(store, await worker(store))] == [ours]

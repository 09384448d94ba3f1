"""What is told to the outside: kept with the move it tells of, attempted by one courier at a time."""

from __future__ import annotations

import asyncio

from keptwork.core.lifecycles import RUN
from keptwork.store import Store, Transaction, open_store
from keptwork.store.contract.outbox import MOST_ATTEMPTS, Delivery, NewDelivery
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import undone
from tests.conformance.times import SetClock

OURS = 1
LEASE = 60_000_000


def message(flow: int, seq: int = 2, tenant_id: int = OURS) -> NewDelivery:
    return NewDelivery(tenant_id, "run", flow, seq, "run.succeeded", "https://example.com/hook", '{"n":1}', "NAME")


async def taken(store: Store, limit: int = 10) -> list[Delivery]:
    return await store.take_deliveries(limit, LEASE)


async def kept(store: Store, flow: int, seq: int = 2) -> Delivery:
    found = await store.delivery(OURS, "run", flow, seq)
    assert found is not None
    return found


@keeps(
    Writer.put_delivery,
    "Store the webhook delivery for a move, due immediately",
    "Storing the same move again has no effect",
)
@keeps(
    Reader.delivery,
    "Return the webhook delivery for one move of an entity",
    "Return None for another tenant's entity, as for one that does not exist",
)
async def test_a_move_is_told_once(timed: Store, clock: SetClock, other_tenant: int) -> None:
    await timed.put_delivery(message(7))
    found = await kept(timed, 7)
    assert found[1:9] == (OURS, "run", 7, 2, "run.succeeded", "https://example.com/hook", '{"n":1}', "NAME")
    assert found[9:] == ("pending", 0, MOST_ATTEMPTS, clock.now, clock.now, None, None)
    await clock.advance(5)
    await timed.put_delivery(message(7)._replace(body="{}"))
    assert await kept(timed, 7) == found
    assert await timed.delivery(other_tenant, "run", 7, 2) is await timed.delivery(OURS, "run", 7, 3) is None


async def test_what_is_told_is_undone_with_the_move_it_tells_of(store: Store) -> None:
    async with undone(store) as transaction:
        await transaction.put_delivery(message(await transaction.create(RUN)))
    assert await store.next_delivery() is None

    async def work(transaction: Transaction) -> int:
        flow = await transaction.create(RUN)
        await transaction.put_delivery(message(flow))
        return flow

    assert (await kept(store, await store.atomically(work))).state == "pending"


@keeps(
    Reader.deliveries,
    "Return at most `limit` webhook deliveries of a tenant, newest first, with IDs below `after`",
    "They belong to one flow or to all, in one state or in any",
)
async def test_messages_are_listed(store: Store, other_tenant: int) -> None:
    for new in (message(1), message(2), message(1, 5), message(9, tenant_id=other_tenant)):
        await store.put_delivery(new)
    first = (await store.deliveries(OURS))[-1]
    (attempt,) = [one for one in await taken(store) if one.id == first.id]
    await store.settle_delivery(attempt, "delivered")
    assert [(one.entity_id, one.seq) for one in await store.deliveries(OURS)] == [(1, 5), (2, 2), (1, 2)]
    assert [(one.entity_id, one.seq) for one in await store.deliveries(OURS, flow=1)] == [(1, 5), (1, 2)]
    assert [one.id for one in await store.deliveries(OURS, state="delivered")] == [first.id]
    assert [one.entity_id for one in await store.deliveries(OURS, state="pending", limit=1)] == [1]
    assert await store.deliveries(OURS, after=first.id) == []
    assert [one.seq for one in await store.deliveries(OURS, flow=1, after=first.id + 1)] == [2]
    assert [one.entity_id for one in await store.deliveries(other_tenant)] == [9]


@keeps(
    Reader.next_delivery,
    "Return the microseconds until the next attempt of a webhook delivery, of any tenant",
    "The number is negative if it is overdue",
    "Return None if no delivery is pending",
)
@keeps(
    Writer.take_deliveries,
    "Take at most `limit` due webhook deliveries and count an attempt for each",
    "No other caller gets one of them until its lease expires",
)
async def test_an_attempt_is_one_couriers_until_its_lease_is_over(timed: Store, clock: SetClock) -> None:
    assert await timed.next_delivery() is None
    assert await taken(timed) == []
    for flow in (1, 2, 3):
        await timed.put_delivery(message(flow))
        await clock.advance(10)
    assert await timed.next_delivery() == -30
    two = await taken(timed, 2)
    assert [(one.entity_id, one.attempts, one.next_at) for one in two] == [
        (1, 1, clock.now + LEASE),
        (2, 1, clock.now + LEASE),
    ]
    assert [one.entity_id for one in await taken(timed)] == [3]
    assert await taken(timed) == []
    assert await timed.next_delivery() == LEASE
    await clock.advance(LEASE)
    assert [(one.entity_id, one.attempts) for one in await taken(timed)] == [(1, 2), (2, 2), (3, 2)]


async def test_sixteen_couriers_never_share_an_attempt(store: Store, database_url: str) -> None:
    stores = [store, *[await open_store(database_url) for _ in range(3)]]
    for flow in range(100):
        await store.put_delivery(message(flow + 1))
    got = await asyncio.gather(*[taken(stores[number % 4], 10) for number in range(16)])
    mine = [one.id for batch in got for one in batch]
    assert len(mine) == len(set(mine)) == 100
    for other in stores[1:]:
        await other.close()


@keeps(
    Writer.settle_delivery,
    "Record the outcome of a delivery attempt",
    "The delivery is delivered, has failed, or is pending and due again after a delay",
    "Return False and change nothing if a later attempt was taken or the delivery has ended",
)
async def test_what_came_of_an_attempt_is_kept_if_it_is_the_last(timed: Store, clock: SetClock) -> None:
    for flow in (1, 2, 3):
        await timed.put_delivery(message(flow))
    again, told, never = await taken(timed)
    assert await timed.settle_delivery(again, "pending", 500, "the answer was 503")
    assert await timed.settle_delivery(told, "delivered")
    assert await timed.settle_delivery(never, "given_up", error="the answer was 404")
    assert [((await kept(timed, flow)).state, (await kept(timed, flow)).last_error) for flow in (1, 2, 3)] == [
        ("pending", "the answer was 503"),
        ("delivered", None),
        ("given_up", "the answer was 404"),
    ]
    assert [(await kept(timed, flow)).ended_at for flow in (1, 2, 3)] == [None, clock.now, clock.now]
    assert await timed.next_delivery() == 500
    assert not await timed.settle_delivery(told, "pending", 0, "late")
    await clock.advance(500)
    (later,) = await taken(timed)
    assert later.attempts == 2
    assert not await timed.settle_delivery(again, "given_up", error="late")
    assert (await kept(timed, 1)).state == "pending"
    assert await timed.settle_delivery(later, "delivered")


@keeps(
    Writer.retry_delivery,
    "Make a delivery due immediately, in whatever state it is",
    "It gets its initial number of further attempts",
    "Return False if there is no such delivery",
)
async def test_a_message_is_made_due_again(timed: Store, clock: SetClock, other_tenant: int) -> None:
    await timed.put_delivery(message(1))
    (attempt,) = await taken(timed)
    await timed.settle_delivery(attempt, "given_up", error="wrong")
    assert not await timed.retry_delivery(other_tenant, attempt.id)
    assert not await timed.retry_delivery(OURS, attempt.id + 1)
    assert await timed.next_delivery() is None
    assert await timed.retry_delivery(OURS, attempt.id)
    found = await kept(timed, 1)
    assert (found.state, found.attempts, found.most_attempts, found.ended_at) == ("pending", 1, 1 + MOST_ATTEMPTS, None)
    assert await timed.next_delivery() == 0
    (second,) = await taken(timed)
    assert second.attempts == 2
    assert not await timed.settle_delivery(attempt, "given_up")


@keeps(
    Writer.forget_deliveries,
    "Delete at most `limit` webhook deliveries that ended before this time, and return their number",
)
async def test_old_messages_are_dropped_and_pending_ones_stay(timed: Store, clock: SetClock) -> None:
    for flow in range(1, 6):
        await timed.put_delivery(message(flow))
    for attempt in (await taken(timed))[:4]:
        await timed.settle_delivery(attempt, "delivered")
        await clock.advance(10)
    assert await timed.forget_deliveries(clock.now - 10, 2) == 2
    assert await timed.forget_deliveries(clock.now - 10) == 1
    assert await timed.forget_deliveries(clock.now - 10) == 0
    assert sorted(one.entity_id for one in await timed.deliveries(OURS)) == [4, 5]

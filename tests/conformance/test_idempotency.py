"""Idempotency rows: the first request of a key does the work, the others are told what it was answered."""

from __future__ import annotations

import asyncio
import time

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.errors import KeyReused, RequestInFlight
from keptwork.store import Store
from keptwork.store.contract.records import Seen
from keptwork.store.contract.store import Writer
from tests.conformance.by_hand import Hand
from tests.conformance.promises import keeps
from tests.conformance.stage import queued, undone
from tests.conformance.times import SECOND, SetClock

HOUR = 3600 * SECOND
ANSWER = '{"run": "run_1",  "n": 1}'


async def answered(
    store: Store, key: str = "k", tenant_id: int = 1, endpoint: str = "POST /runs", hash: str = "h"
) -> None:
    """A first request, done and answered."""
    async with store.transaction() as transaction:
        assert await transaction.recall(tenant_id, endpoint, key, hash) is None
        await transaction.answer(tenant_id, endpoint, key, ANSWER)


@keeps(
    Writer.recall,
    "Return None for the first request with this key, which this transaction must then answer",
    "For a later request, return the stored response of the first",
)
@keeps(Writer.answer, "Store the response for repeated requests")
async def test_the_first_request_of_a_key_is_new_and_a_repeated_one_is_told_the_first_ones_answer(store: Store) -> None:
    await answered(store)
    for _ in range(2):
        assert await store.recall(1, "POST /runs", "k", "h") == Seen("h", ANSWER)


@keeps(Writer.recall, "Raise `KeyReused` if the request body differs")
async def test_the_same_key_with_another_body_is_key_reused_and_spoils_nothing(store: Store) -> None:
    await answered(store)
    with pytest.raises(KeyReused, match="'k' was used before"):
        await store.recall(1, "POST /runs", "k", "other")
    assert await store.recall(1, "POST /runs", "k", "h") == Seen("h", ANSWER)


async def test_a_key_belongs_to_one_tenant_and_one_endpoint(store: Store, other_tenant: int) -> None:
    await answered(store)
    await answered(store, tenant_id=other_tenant, hash="theirs")
    await answered(store, endpoint="POST /jobs", hash="another")
    await answered(store, key="k2")


@keeps(Writer.answer, "It is stored if and only if the transaction commits")
async def test_a_first_request_that_is_undone_leaves_its_key_free(store: Store) -> None:
    async with undone(store) as transaction:
        assert await transaction.recall(1, "POST /runs", "k", "h") is None
        await queued(transaction)
        await transaction.answer(1, "POST /runs", "k", ANSWER)
    assert await store.counts(JOB) == (0, 0)
    await answered(store, hash="another body")


async def test_a_request_that_committed_without_an_answer_is_still_in_flight(store: Store) -> None:
    assert await store.recall(1, "POST /runs", "k", "h") is None
    with pytest.raises(RequestInFlight, match="'k' is still being handled"):
        await store.recall(1, "POST /runs", "k", "h")
    await store.answer(1, "POST /runs", "k", ANSWER)
    assert await store.recall(1, "POST /runs", "k", "h") == Seen("h", ANSWER)


async def test_a_second_request_waits_for_the_first_and_is_told_its_answer(store: Store) -> None:
    async with store.transaction() as first:
        assert await first.recall(1, "POST /runs", "k", "h") is None
        second = asyncio.create_task(store.recall(1, "POST /runs", "k", "h"))
        await asyncio.sleep(0.1)
        assert not second.done()
        await first.answer(1, "POST /runs", "k", ANSWER)
    assert await second == Seen("h", ANSWER)


async def test_a_second_request_is_the_first_when_the_first_was_undone(store: Store) -> None:
    async with undone(store) as first:
        await first.recall(1, "POST /runs", "k", "h")
        second = asyncio.create_task(store.recall(1, "POST /runs", "k", "h"))
        await asyncio.sleep(0.1)
        assert not second.done()
    assert await second is None


async def test_of_sixteen_requests_at_once_one_does_the_work(store: Store) -> None:
    async def request() -> Seen | None:
        async with store.transaction() as transaction:
            seen = await transaction.recall(1, "POST /runs", "k", "h")
            if seen is None:
                await queued(transaction)
                await transaction.answer(1, "POST /runs", "k", ANSWER)
            return seen

    answers = await asyncio.gather(*[request() for _ in range(16)])
    assert sorted(map(str, answers)) == sorted([str(None)] + [str(Seen("h", ANSWER))] * 15)
    assert await store.counts(JOB) == (1, 0)


@keeps(Writer.recall, "Return None for the first request with this key, which this transaction must then answer")
async def test_a_key_may_be_used_again_when_its_time_is_over_and_not_before(timed: Store, clock: SetClock) -> None:
    await answered(timed)
    await clock.advance(HOUR - SECOND)
    assert await timed.recall(1, "POST /runs", "k", "h") == Seen("h", ANSWER)
    await clock.advance(SECOND)
    await answered(timed, hash="another body")


async def test_how_long_a_key_is_kept_is_up_to_the_request(timed: Store, clock: SetClock) -> None:
    assert await timed.recall(1, "POST /runs", "k", "h", ttl_us=SECOND) is None
    await clock.advance(SECOND)
    assert await timed.recall(1, "POST /runs", "k", "h", ttl_us=SECOND) is None


@keeps(Writer.forget_requests, "Delete at most `limit` expired idempotency keys of requests, and return their number")
async def test_the_keys_whose_time_is_over_are_dropped_and_counted(timed: Store, clock: SetClock, hand: Hand) -> None:
    for key, ttl_us in (("a", SECOND), ("b", 2 * SECOND), ("c", HOUR)):
        await timed.recall(1, "POST /runs", key, "h", ttl_us=ttl_us)
    assert await timed.forget_requests() == 0
    await clock.advance(2 * SECOND)
    assert await timed.forget_requests(limit=1) == 1
    assert await timed.forget_requests() == 1
    assert await timed.forget_requests() == 0
    assert await hand.run("SELECT key FROM idempotency_keys") == [("c",)]


@pytest.mark.acceptance
@keeps(Writer.recall, "Raise `RequestInFlight` if the first request is still running after 2 s")
async def test_a_request_still_at_work_after_two_seconds_is_in_flight(postgres_store: Store) -> None:
    async with postgres_store.transaction() as first:
        assert await first.recall(1, "POST /runs", "k", "h") is None
        began = time.monotonic()
        with pytest.raises(RequestInFlight, match="'k' is still being handled"):
            async with postgres_store.transaction() as second:
                await second.recall(1, "POST /runs", "k", "h")
        assert 1.8 < time.monotonic() - began < 8
        await first.answer(1, "POST /runs", "k", ANSWER)
    assert await postgres_store.recall(1, "POST /runs", "k", "h") == Seen("h", ANSWER)

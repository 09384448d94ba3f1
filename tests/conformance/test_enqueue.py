"""Enqueue: jobs enter the queue, all or none, each key once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.errors import StoreError
from keptwork.store import NewJob, Store
from keptwork.store.contract.store import Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import entity, log, moved, queued
from tests.conformance.times import SECOND, SetClock


@keeps(Writer.enqueue, "Enqueue all jobs or none, and return their IDs")
async def test_all_jobs_are_queued_each_with_its_first_event(store: Store) -> None:
    ids = await store.enqueue([NewJob("a"), NewJob("b"), NewJob("c")])
    rows = [await entity(store, JOB, id) for id in ids]
    assert [(row["kind"], row["state"], row["seq"], row["epoch"]) for row in rows] == [
        (kind, "queued", 1, 0) for kind in "abc"
    ]
    events = sorted(await log(store), key=lambda event: event.entity_id)
    assert [(e.entity_id, e.seq, e.type, e.from_state, e.to_state) for e in events] == [
        (id, 1, "job_enqueued", None, "queued") for id in ids
    ]


async def test_the_ids_come_in_the_order_of_the_jobs_and_grow(store: Store) -> None:
    first = await queued(store, 200)
    second = await queued(store, 3)
    assert first + second == sorted(set(first + second))


@keeps(Writer.enqueue, "Enqueue all jobs or none, and return their IDs")
async def test_a_bad_job_in_the_batch_leaves_none(store: Store) -> None:
    with pytest.raises(StoreError):
        await store.enqueue([NewJob("good"), NewJob("bad", on_exhausted="shrug"), NewJob("good")])
    assert await store.counts(JOB) == (0, 0)
    assert await store.event_count() == 0


async def test_nothing_to_enqueue_is_nothing_done(store: Store) -> None:
    assert await store.enqueue([]) == []
    assert await store.event_count() == 0


@keeps(
    Writer.enqueue, "A job whose key was used before is not created, and the ID of the first job is returned instead"
)
async def test_the_same_batch_twice_makes_its_keyed_jobs_once(store: Store) -> None:
    batch = [NewJob("a", key="k1"), NewJob("b", key="k2")]
    first = await store.enqueue(batch)
    assert await store.enqueue(batch) == first
    assert await store.counts(JOB) == (2, 0)
    assert await store.event_count() == 2


@keeps(
    Writer.enqueue, "A job whose key was used before is not created, and the ID of the first job is returned instead"
)
async def test_the_same_key_twice_in_one_batch_makes_one_job(store: Store) -> None:
    first, other, repeated = await store.enqueue([NewJob("a", key="k"), NewJob("b"), NewJob("c", key="k")])
    assert repeated == first != other
    assert (await entity(store, JOB, first))["kind"] == "a"
    assert await store.counts(JOB) == (2, 0)


async def test_a_used_key_does_not_hold_up_the_new_jobs_beside_it(store: Store) -> None:
    (old,) = await store.enqueue([NewJob("old", key="k")])
    ids = await store.enqueue([NewJob("x"), NewJob("again", key="k"), NewJob("y", key="new")])
    assert ids[1] == old
    assert [(await entity(store, JOB, id))["kind"] for id in ids] == ["x", "old", "y"]


async def test_a_key_is_not_free_again_when_its_job_has_ended(store: Store) -> None:
    (first,) = await store.enqueue([NewJob("kind", key="k")])
    await moved(store, JOB, first, "cancel")
    assert await store.enqueue([NewJob("kind", key="k")]) == [first]
    assert (await entity(store, JOB, first))["state"] == "cancelled"


async def test_eight_callers_with_one_key_at_once_get_one_job(store: Store) -> None:
    answers = await asyncio.gather(*[store.enqueue([NewJob("kind", key="k"), NewJob("kind")]) for _ in range(8)])
    assert len({keyed for keyed, _ in answers}) == 1
    assert len({free for _, free in answers}) == 8
    assert await store.counts(JOB) == (9, 0)


async def test_two_tenants_may_use_the_same_key(store: Store, other_tenant: int) -> None:
    ours, theirs = await store.enqueue([NewJob("a", key="k"), NewJob("b", key="k", tenant_id=other_tenant)])
    assert ours != theirs
    assert await store.enqueue([NewJob("b", key="k", tenant_id=other_tenant)]) == [theirs]


async def test_a_job_is_due_at_once_or_after_its_delay_or_at_its_time_and_never_in_the_past(
    timed: Store, clock: SetClock
) -> None:
    now = clock.now
    wishes = [
        (NewJob("now"), now),
        (NewJob("delayed", delay_us=5), now + 5),
        (NewJob("later", run_at=now + 7), now + 7),
        (NewJob("both", run_at=now + 7, delay_us=5), now + 12),
        (NewJob("missed", run_at=now - SECOND), now),
    ]
    ids = await timed.enqueue([job for job, _ in wishes])
    assert [(await entity(timed, JOB, id))["run_at"] for id in ids] == [due for _, due in wishes]
    assert {(await entity(timed, JOB, id))["created_at"] for id in ids} == {now}


async def test_everything_said_of_a_job_is_kept(store: Store) -> None:
    payload = '{"b": 1,  "a": "\\u00e9\U0001f980"}'
    said: dict[str, Any] = {
        "queue": "q",
        "priority": -3,
        "max_attempts": 9,
        "on_exhausted": "fail",
        "key": "k",
        "hold_key": "tool:x",
    }
    traced: dict[str, Any] = {"actor": "ann", "cause": "cron", "correlation_id": "c-1", "trace_id": "t-1"}
    (id,) = await store.enqueue([NewJob("kind", payload, held_by="tool:x", **said, **traced)])
    row = await entity(store, JOB, id)
    assert row["payload"] == payload
    assert {name: row[name] for name in (*said, *traced)} == {**said, **traced}
    assert (row["held_by"], row["attempts"], row["owner"], row["lease_until"]) == ("tool:x", 0, None, None)
    (event,) = await log(store)
    assert {name: getattr(event, name) for name in traced} == traced


async def test_a_large_payload_comes_back_whole(store: Store) -> None:
    payload = json.dumps({"text": "x" * 1_000_000})
    (id,) = await queued(store, payload=payload)
    assert (await entity(store, JOB, id))["payload"] == payload


@pytest.mark.parametrize("number", [1, 9, 10, 200])
async def test_a_job_is_the_same_however_many_are_enqueued_with_it(store: Store, number: int) -> None:
    said = NewJob(
        "kind",
        '{"text": "a \\"quote\\", \\u0000 and ü"}',
        "ümlaut 'queue'",
        priority=-3,
        run_at=4_000_000_000_000_000,
        delay_us=7,
        max_attempts=9,
        on_exhausted="fail",
        hold_key="tool:x",
        actor="ann",
        cause="because",
        correlation_id="c" * 40,
        trace_id="0" * 32,
        redriven_from=1 << 60,
        parent_id=5,
        step_id=(1 << 62) + 1,
    )
    made = await store.enqueue([said] * number)
    assert made == sorted(set(made))
    assert len(made) == number
    rows = {row["id"]: row for row in await store.rows(JOB, made)}
    shown = {name: value for name, value in said._asdict().items() if name not in ("run_at", "delay_us")}
    for id in made:
        assert {name: rows[id][name] for name in shown} == shown
        assert rows[id]["run_at"] == 4_000_000_000_000_007
    events = await log(store, correlation_id="c" * 40)
    assert [event.entity_id for event in events] == made
    assert {(event.trigger, event.actor, event.cause, event.seq) for event in events} == {
        ("enqueue", "ann", "because", 1)
    }


@pytest.mark.parametrize("number", [1, 10])
async def test_what_is_no_text_is_refused_and_leaves_nothing(store: Store, number: int) -> None:
    with pytest.raises((UnicodeError, StoreError)):
        await store.enqueue([NewJob("kind", actor="half of a pair: \ud800")] * number)
    assert await store.counts(JOB) == (0, 0)


async def test_large_payloads_come_whole_however_many_there_are(store: Store) -> None:
    said = [NewJob("kind", json.dumps({"number": number, "text": "x" * 20_000})) for number in range(20)]
    made = await store.enqueue(said)
    rows = {row["id"]: row["payload"] for row in await store.rows(JOB, made, ("id", "payload"))}
    assert [rows[id] for id in made] == [job.payload for job in said]

"""Limits: what they hold back, what they let go and when; and claims that give each tenant its turn."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Job, NewJob, Store
from keptwork.store.contract.records import LimitRule
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, decided, entity, moved, queued, worker
from tests.conformance.times import SECOND, SetClock

ALL, EACH = "*:kind", "tenant:kind"


async def limited(store: Store, number: int = 1, key: str = ALL, **fields: object) -> list[int]:
    return await store.enqueue([NewJob("kind", limit_key=key, held_by="limit", **fields)] * number)  # type: ignore[arg-type]


def tenants(jobs: list[Job]) -> list[int]:
    return [job.tenant_id for job in jobs]


@keeps(Writer.claim, "Tenants take turns, and each tenant's jobs go by highest priority, then by earliest due time")
async def test_tenants_take_turns_and_what_one_does_not_use_goes_to_the_others(store: Store) -> None:
    owner, few, none = await worker(store), await store.add_tenant("few"), await store.add_tenant("none")
    await queued(store, 20)
    await queued(store, 2, tenant_id=few)
    await queued(store, 5, tenant_id=none, delay_us=SECOND * 1000)
    taken = tenants(await claim(store, owner, 10))
    assert sorted(taken[:4]) == [1, 1, few, few]
    assert taken[0] != taken[1]
    assert taken[4:] == [1] * 6


async def test_more_tenants_than_a_claim_has_room_for_are_served_one_claim_after_the_other(store: Store) -> None:
    owner = await worker(store)
    names = [await store.add_tenant(f"t{number}") for number in range(9)]
    await store.enqueue([NewJob("kind", tenant_id=tenant) for tenant in names for _ in range(9)])
    served = [tenant for _ in range(3) for tenant in tenants(await claim(store, owner, 3))]
    assert sorted(served) == names


async def test_a_paused_queue_of_one_tenant_does_not_keep_another_from_its_turn(store: Store) -> None:
    owner, other = await worker(store), await store.add_tenant("other")
    await queued(store, 5)
    await queued(store, 5, tenant_id=other)
    await store.set_queue_paused("default", True)
    assert tenants(await claim(store, owner, 9)) == [other] * 5


@keeps(Writer.claim, "A queue with a limit gives no more than its limit allows")
async def test_a_queue_gives_no_more_than_its_limit(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    await timed.declare_limits([LimitRule("queue", "slow", 2), LimitRule("queue", "rare", None, 3, SECOND)])
    await queued(timed, 5, queue="slow")
    await queued(timed, 5, queue="rare")
    first = await claim(timed, owner, 9, "slow", start=True)
    assert (len(first), len(await claim(timed, owner, 9, "slow", "other", start=True))) == (2, 0)
    await moved(timed, JOB, first[0].id, "succeed", by="holder")
    assert len(await claim(timed, owner, 9, "slow", start=True)) == 1
    assert len(await claim(timed, owner, 9, "rare")) == 3
    await clock.advance(SECOND - 1)
    assert len(await claim(timed, owner, 9, "rare")) == 0
    await clock.advance(3)
    assert len(await claim(timed, owner, 9, "rare")) == 2


@keeps(
    Writer.pump,
    "Promote due jobs that limits hold, never more than the limits allow",
    "Return their number",
)
@keeps(Writer.apply, "When a job no longer counts against its limit, the same write promotes the next one")
async def test_what_ends_lets_the_next_one_go(store: Store) -> None:
    owner = await worker(store)
    await store.declare_limits([LimitRule("job", "kind", 2)])
    await limited(store, 5)
    assert await claim(store, owner) == []
    assert (await store.pump(), await store.pump()) == (2, 0)
    jobs = await claim(store, owner, start=True)
    assert (len(jobs), await store.pump(), await claim(store, owner)) == (2, 0, [])
    for trigger in ("succeed", "fail"):
        await moved(store, JOB, jobs.pop().id, trigger, by="holder")
        assert len(await claim(store, owner, start=True)) == 1


@keeps(Writer.pump, "A job that returns to the queue is held by its limit again")
@pytest.mark.parametrize("trigger", ["retry", "release", "snooze", "expire"])
async def test_a_job_that_goes_back_waits_for_its_turn_again(timed: Store, clock: SetClock, trigger: str) -> None:
    owner = await worker(timed)
    await timed.declare_limits([LimitRule("job", "kind", 1)])
    await limited(timed, 2, priority=1)
    await timed.pump()
    (job,) = await claim(timed, owner, start=True, lease_us=SECOND)
    await limited(timed, 1, priority=5)
    if trigger == "expire":
        await clock.advance(SECOND)
    values = {} if trigger == "expire" else {"values": {"delay_us": SECOND}}
    await moved(timed, JOB, job.id, trigger, by="reaper" if trigger == "expire" else "holder", **values)
    (next_one,) = await claim(timed, owner, start=True)
    assert (next_one.priority, (await entity(timed, JOB, job.id))["held_by"]) == (5, "limit")
    await moved(timed, JOB, next_one.id, "succeed", by="holder")
    (third,) = await claim(timed, owner, start=True)
    await moved(timed, JOB, third.id, "succeed", by="holder")
    await clock.advance(SECOND)
    await timed.pump()
    await claim(timed, owner, start=True)
    assert (await entity(timed, JOB, job.id))["state"] == "running" or third.id == job.id


@keeps(Reader.next_pump, "Return when the keys of limits must be checked next (µs), or None if no job waits for that")
async def test_a_delayed_job_is_let_go_when_it_is_due(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    await timed.declare_limits([LimitRule("job", "kind", 1)])
    assert await timed.next_pump() is None
    await limited(timed, delay_us=SECOND)
    assert await timed.next_pump() == clock.now + SECOND
    assert await timed.pump() == 0
    await clock.advance(SECOND)
    assert await timed.pump() == 1
    assert len(await claim(timed, owner)) == 1


async def test_a_job_made_due_earlier_by_somebody_else_is_let_go(timed: Store, clock: SetClock) -> None:
    await timed.declare_limits([LimitRule("job", "kind", 1)])
    (id,) = await limited(timed, delay_us=1000 * SECOND)
    async with timed.transaction() as transaction:
        await transaction.execute(f"UPDATE jobs SET run_at = {clock.now} WHERE id = {id}")
    assert await timed.pump() == 1


async def test_a_rate_counts_every_start_in_the_window(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    await timed.declare_limits([LimitRule("job", "kind", None, 2, SECOND)])
    await limited(timed, 5)
    assert await timed.pump() == 2
    (first, _) = await claim(timed, owner, start=True)
    await moved(timed, JOB, first.id, "retry", by="holder", values={"delay_us": 0})
    assert await claim(timed, owner) == []
    await clock.advance(SECOND // 2)
    assert await timed.pump() == 0
    at = await timed.next_pump()
    assert at is not None
    await clock.advance(at - clock.now)
    assert await timed.pump() == 2


async def test_keys_of_tenants_are_counted_apart_and_those_of_all_in_turn(store: Store) -> None:
    owner, other, jobs = await worker(store), await store.add_tenant("other"), list[Job]()
    await store.declare_limits([LimitRule("job", "kind", 1)])
    for key, expected in ((EACH, [1, other]), (ALL, [1])):
        await limited(store, 3, key)
        await limited(store, 3, key, tenant_id=other)
        await store.pump()
        jobs = await claim(store, owner, start=True)
        assert sorted(tenants(jobs)) == expected
    served = []
    for _ in range(3):
        (job,) = jobs
        served.append(job.tenant_id)
        await moved(store, JOB, job.id, "succeed", by="holder")
        jobs = await claim(store, owner, start=True)
    assert served == [1, other, 1]


@keeps(
    Writer.declare_limits,
    "Set these limits for all workers, and check the jobs that they hold again",
    "A rule without a limit is deleted",
)
@keeps(Reader.limit_rules, "Return every declared limit of job kinds and of queues")
async def test_a_limit_that_changes_holds_from_now_on(store: Store) -> None:
    rule, other = LimitRule("job", "kind", 1, None, None, "tenant"), LimitRule("queue", "q", None, 3, SECOND)
    await store.declare_limits([rule, other])
    assert await store.limit_rules() == [rule, other]
    await limited(store, 5, EACH)
    assert await store.pump() == 1
    await store.declare_limits([rule._replace(most=3)])
    assert await store.pump() == 2
    await store.declare_limits([LimitRule("job", "kind"), LimitRule("queue", "q")])
    assert await store.pump() == 2
    assert await store.limit_rules() == []


@keeps(
    Reader.limit_uses,
    "Return the use of limits per key, for the tenant's limits and those of all tenants",
    "It has the jobs that count against a key, and the jobs that the key holds",
)
async def test_uses_of_limits_are_counted_key_by_key(store: Store) -> None:
    owner = await worker(store)
    await store.declare_limits([LimitRule("job", "kind", 2), LimitRule("queue", "q", 5)])
    await limited(store, 5)
    await limited(store, 3, EACH)
    await queued(store, queue="q")
    await store.pump()
    await claim(store, owner, 9, "q", start=True)
    assert [use[:4] for use in await store.limit_uses(1)] == [
        (0, ALL, 2, 3),
        (0, "queue:q", 1, 0),
        (1, EACH, 2, 1),
    ]
    assert [use.key for use in await store.limit_uses(99)] == [ALL, "queue:q"]


async def test_a_cancelled_job_gives_its_place_back(store: Store) -> None:
    owner = await worker(store)
    await store.declare_limits([LimitRule("job", "kind", 1)])
    ids = await limited(store, 2)
    await store.pump()
    await store.apply([await decided(store, JOB, ids[0], "cancel")])
    assert [job.id for job in await claim(store, owner)] == [ids[1]]


@keeps(
    Writer.enqueue_unique,
    "Create a job unless this key of the tenant created one less than a window ago",
    "Return the ID of the new or the earlier job, in whatever state that is",
)
async def test_one_job_is_made_in_a_unique_window(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    made = await asyncio.gather(*[timed.enqueue_unique(NewJob("kind"), "u", SECOND) for _ in range(64)])
    assert len(set(made)) == 1
    await claim(timed, owner, start=True)
    await moved(timed, JOB, made[0], "succeed", by="holder")
    await clock.advance(SECOND - 10)  # a job that has moved on may have moved this clock a little
    assert await timed.enqueue_unique(NewJob("kind"), "u", SECOND) == made[0]
    assert await timed.enqueue_unique(NewJob("kind", tenant_id=2), "u", SECOND) != made[0]
    await clock.advance(10)
    assert await timed.enqueue_unique(NewJob("kind"), "u", SECOND) != made[0]


@keeps(
    Writer.enqueue_debounced,
    "Create a job that is due after a wait, or postpone the earlier one of this key",
    "Only a job of the tenant that has not started is postponed, by the wait",
    "It takes the new payload, queue, priority, and IDs",
    "It is due at most `most_us` after its creation",
    "Return the ID of the job",
)
async def test_calls_that_follow_each_other_make_one_job(timed: Store, clock: SetClock) -> None:
    owner, began = await worker(timed), clock.now
    made = await asyncio.gather(
        *[timed.enqueue_debounced(NewJob("kind", f'{{"n":{n}}}'), "d", 5 * SECOND, 12 * SECOND) for n in range(64)]
    )
    assert len(set(made)) == 1
    for _ in range(4):
        await clock.advance(3 * SECOND)
        assert await timed.enqueue_debounced(NewJob("kind", '{"n":99}'), "d", 5 * SECOND, 12 * SECOND) == made[0]
    (job,) = await claim(timed, owner, start=True)
    assert (job.id, job.payload, job.run_at) == (made[0], '{"n":99}', began + 12 * SECOND)
    assert await timed.enqueue_debounced(NewJob("kind"), "d", 5 * SECOND, 12 * SECOND) != made[0]


@keeps(
    Writer.forget_limits,
    "Delete records of limits and unique windows that are no longer needed",
    "At most `limit` of each kind are deleted",
    "Return their number",
)
async def test_what_is_needed_no_longer_is_dropped(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    await timed.declare_limits([LimitRule("job", "kind", 1, 5, SECOND)])
    await timed.enqueue_unique(NewJob("plain"), "u", SECOND)
    await limited(timed)
    await timed.pump()
    (job,) = [job for job in await claim(timed, owner, start=True) if job.kind == "kind"]
    assert await timed.forget_limits() == 0
    await moved(timed, JOB, job.id, "succeed", by="holder")
    await clock.advance(SECOND + 10)
    assert await timed.forget_limits() == 3
    assert await timed.forget_limits() == 0

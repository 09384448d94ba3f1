"""Claim: due jobs go to one worker each, in order, under a lease."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.core.lifecycles import JOB, WORKER
from keptwork.store import Job, NewJob, Store
from keptwork.store.contract.records import JOB_COLUMNS
from keptwork.store.contract.store import Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, claim, claimed, decided, entity, log, moved, queued, worker
from tests.conformance.times import SECOND, SetClock


def kinds(jobs: list[Job]) -> list[str]:
    return [job.kind for job in jobs]


@keeps(Writer.claim, "Claim due jobs, each for one worker only")
async def test_each_job_goes_to_one_claimer_only(store: Store) -> None:
    owners = [await worker(store, name=str(number)) for number in range(8)]
    ids = await queued(store, 60)
    taken = await asyncio.gather(*[claim(store, owner, 4) for owner in owners for _ in range(2)])
    rest = await claim(store, owners[0])
    assert sorted(job.id for jobs in (*taken, rest) for job in jobs) == ids
    assert sorted(event.entity_id for event in await log(store, type="job_claimed")) == ids


async def test_a_claimed_job_is_assigned_to_its_worker_until_its_lease_is_over(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (id,) = await queued(timed, correlation_id="c-1", trace_id="t-1")
    before = await entity(timed, JOB, id)
    await clock.advance(SECOND)
    (job,) = await claim(timed, owner, claim_id=77, lease_us=LEASE)
    after = await entity(timed, JOB, id)
    assert {name: value for name, value in after.items() if value != before[name]} == {
        "state": "assigned",
        "seq": 2,
        "move": "claim",
        "updated_at": clock.now,
        "actor": f"w:{owner}",
        "owner": owner,
        "claim_id": 77,
        "lease_until": clock.now + LEASE,
    }
    assert {name: job[name] for name in JOB_COLUMNS} == {name: after[name] for name in JOB_COLUMNS}
    assert (job.token.owner, job.token.epoch) == (owner, 0)


async def test_a_claim_is_one_event_by_the_worker(store: Store) -> None:
    owner = await worker(store)
    await queued(store, correlation_id="c-1", trace_id="t-1")
    (job,) = await claim(store, owner)
    (event,) = await log(store, type="job_claimed")
    assert (event.entity_id, event.seq, event.epoch, event.trigger) == (job.id, 2, 0, "claim")
    assert (event.from_state, event.to_state, event.actor) == ("queued", "assigned", f"w:{owner}")
    assert (event.correlation_id, event.trace_id) == ("c-1", "t-1")


@keeps(Writer.claim, "Tenants take turns, and each tenant's jobs go by highest priority, then by earliest due time")
async def test_the_highest_priority_goes_first_then_the_oldest(timed: Store, clock: SetClock) -> None:
    owner, now = await worker(timed), clock.now
    wishes = [("low", -1, 0), ("third", 0, 3), ("high", 5, 9), ("first", 0, 1), ("second", 0, 1)]
    await timed.enqueue([NewJob(kind, priority=priority, run_at=now + due) for kind, priority, due in wishes])
    await clock.advance(SECOND)
    assert kinds(await claim(timed, owner)) == ["high", "first", "second", "third", "low"]


async def test_several_queues_are_served_as_one_in_the_order_of_their_jobs(timed: Store, clock: SetClock) -> None:
    owner, now = await worker(timed), clock.now
    wishes = [
        ("a", "4", 0, 4),
        ("b", "1", 9, 9),
        ("a", "2", 7, 2),
        ("b", "3", 0, 1),
        ("a", "5", -1, 0),
        ("c", "x", 99, 0),
    ]
    await timed.enqueue([NewJob(kind, queue=q, priority=p, run_at=now + due) for q, kind, p, due in wishes])
    await clock.advance(SECOND)
    assert kinds(await claim(timed, owner, 3, "a", "b")) == ["1", "2", "3"]
    assert kinds(await claim(timed, owner, 9, "b", "a")) == ["4", "5"]


async def test_a_queue_named_twice_gives_each_job_once(store: Store) -> None:
    ids = await queued(store, 4)
    assert [job.id for job in await claim(store, await worker(store), 3, "default", "default")] == ids[:3]


async def test_no_queue_gives_no_job(store: Store) -> None:
    await queued(store)
    assert await store.claim(await worker(store), [], 1, LEASE, claim_id=1) == []


async def test_no_more_than_the_limit_is_taken(store: Store) -> None:
    ids = await queued(store, 5)
    owner = await worker(store)
    assert [job.id for job in await claim(store, owner, 2)] == ids[:2]
    assert await claim(store, owner, 0) == []
    assert [job.id for job in await claim(store, owner, 9)] == ids[2:]


async def test_a_job_is_taken_when_it_is_due_and_not_a_moment_before(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    await queued(timed, delay_us=SECOND)
    await clock.advance(SECOND - 1)
    assert await claim(timed, owner) == []
    await clock.advance(1)
    assert len(await claim(timed, owner)) == 1


async def test_a_held_job_is_not_taken(store: Store) -> None:
    await queued(store, hold_key="tool:x", held_by="tool:x")
    (free,) = await queued(store, hold_key="tool:x")
    assert [job.id for job in await claim(store, await worker(store))] == [free]


@pytest.mark.parametrize("state", ["IDLE", "RUNNING"])
async def test_a_worker_that_is_idle_or_running_may_claim(store: Store, state: str) -> None:
    await queued(store)
    assert len(await claim(store, await worker(store, state))) == 1


@pytest.mark.parametrize("state", ["PAUSED", "COMPLETED", "FAILED", "TERMINATED"])
@keeps(Writer.claim, "A worker that is not IDLE or RUNNING gets none")
async def test_a_worker_that_is_not_idle_or_running_gets_none(store: Store, state: str) -> None:
    await queued(store)
    assert await claim(store, await worker(store, state)) == []
    assert await log(store, type="job_claimed") == []


async def test_a_worker_nobody_knows_gets_none(store: Store) -> None:
    await queued(store)
    assert await claim(store, 12345) == []


@keeps(Writer.claim, "A worker that is not IDLE or RUNNING gets none")
async def test_a_claim_under_way_while_its_worker_is_paused_gets_none(store: Store) -> None:
    owner = await worker(store, "RUNNING")
    await queued(store)
    pause = await decided(store, WORKER, owner, "pause")
    async with store.transaction() as supervisor:
        assert await supervisor.apply([pause]) == []
        under_way = asyncio.create_task(claim(store, owner))
        await asyncio.sleep(0.1)  # long enough for it to reach the row that the supervisor has locked
        assert not under_way.done()
    assert await under_way == []


async def test_a_claim_for_one_tenant_takes_only_its_jobs(store: Store, other_tenant: int) -> None:
    owner = await worker(store)
    ours, theirs = await store.enqueue([NewJob("a"), NewJob("b", tenant_id=other_tenant)])
    assert [job.id for job in await claim(store, owner, tenant_id=other_tenant)] == [theirs]
    assert [job.id for job in await claim(store, owner)] == [ours]


async def test_a_claim_for_no_tenant_takes_every_tenants_jobs(store: Store, other_tenant: int) -> None:
    ids = await store.enqueue([NewJob("a"), NewJob("b", tenant_id=other_tenant)])
    assert [job.id for job in await claim(store, await worker(store))] == ids


async def test_a_claimed_job_is_not_claimed_again_though_its_lease_is_over(timed: Store, clock: SetClock) -> None:
    await claimed(timed, await worker(timed))
    await clock.advance(2 * LEASE)
    assert await claim(timed, await worker(timed, name="bob")) == []


@keeps(
    Writer.claim, "With `again`, a repeated claim whose response was lost returns the jobs it took and takes no more"
)
async def test_a_claim_whose_answer_was_lost_returns_the_jobs_it_took_and_takes_no_more(store: Store) -> None:
    owner = await worker(store)
    await store.enqueue([NewJob("kind", priority=number % 3) for number in range(6)])
    await claim(store, owner, 1, claim_id=1000)
    lost = await claim(store, owner, 3, claim_id=1001)
    before = await store.event_count()
    assert await claim(store, owner, 3, claim_id=1001, again=True) == lost
    assert await store.event_count() == before


async def test_asking_again_for_a_claim_that_never_arrived_takes_nothing(store: Store) -> None:
    owner = await worker(store)
    await queued(store)
    assert await claim(store, owner, claim_id=1002, again=True) == []
    assert await log(store, type="job_claimed") == []


async def test_another_workers_claim_cannot_be_asked_for_again(store: Store) -> None:
    await queued(store)
    await claim(store, await worker(store), claim_id=1003)
    assert await claim(store, await worker(store, name="bob"), claim_id=1003, again=True) == []


async def test_a_lost_claim_returns_what_it_still_holds_as_it_is_now(store: Store) -> None:
    owner = await worker(store)
    started, released, ended = await queued(store, 3)
    await claim(store, owner, claim_id=1004)
    await moved(store, JOB, started, "start", by="holder")
    await moved(store, JOB, released, "release", by="holder")
    await moved(store, JOB, ended, "cancel")
    (held,) = await claim(store, owner, claim_id=1004, again=True)
    assert (held.id, held.state, held.seq, held.attempts) == (started, "running", 3, 1)


async def test_a_claim_spends_no_attempt(store: Store) -> None:
    assert [job.attempts for job in await claimed(store, await worker(store))] == [0]


@keeps(
    Writer.claim,
    "With `start`, the jobs are running when they are returned",
    "Claim and start are two moves and two events in one write",
)
async def test_a_claim_that_starts_makes_two_moves_in_one_write(store: Store) -> None:
    owner = await worker(store)
    (id,) = await queued(store, correlation_id="c-1")
    (job,) = await claim(store, owner, start=True)
    assert (job.state, job.seq, job.attempts, job.owner) == ("running", 3, 1, owner)
    row = await entity(store, JOB, id)
    claim_event, start_event = (await log(store, entity_id=id))[1:]
    assert (claim_event.trigger, claim_event.seq, claim_event.from_state) == ("claim", 2, "queued")
    assert (start_event.trigger, start_event.seq, start_event.from_state) == ("start", 3, "assigned")
    assert claim_event.to_state == start_event.from_state
    assert claim_event.ts < start_event.ts == row["updated_at"] == row["started_at"]
    assert {(e.actor, e.correlation_id) for e in (claim_event, start_event)} == {(f"w:{owner}", "c-1")}


async def test_a_lost_claim_that_started_its_jobs_can_be_asked_for_again(store: Store) -> None:
    owner = await worker(store)
    await queued(store, 3)
    taken = await claim(store, owner, claim_id=1005, start=True)
    assert await claim(store, owner, claim_id=1005, again=True) == taken


@keeps(Writer.claim, "Jobs of the kinds in `without` are left to other workers")
@pytest.mark.parametrize("start", [True, False])
async def test_kinds_that_a_worker_does_not_know_are_left_to_others(store: Store, start: bool) -> None:
    kinds = ["brew", "bake", "brew", "boil"]
    ids = dict(zip(await store.enqueue([NewJob(kind) for kind in kinds]), kinds, strict=True))
    one, other = await worker(store), await worker(store)
    taken = await claim(store, one, start=start, without=["brew", "boil", "never seen"])
    assert [ids[job.id] for job in taken] == ["bake"]
    assert [ids[job.id] for job in await claim(store, other, start=start)] == ["brew", "brew", "boil"]

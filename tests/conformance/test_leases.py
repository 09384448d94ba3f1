"""Leases: renewed by their holder, lost to everyone else, and seen by the reaper when they are over."""

from __future__ import annotations

from keptwork.core.lifecycles import JOB
from keptwork.store import Store
from keptwork.store.contract.records import Held
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, claim, claimed, entity, moved, queued, running, worker
from tests.conformance.times import SECOND, SetClock


@keeps(Writer.renew, "Extend the leases of these (job, epoch) pairs from now")
async def test_the_leases_of_a_holder_run_on_from_now(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (assigned,), (started,) = await claimed(timed, owner), await running(timed, owner)
    await clock.advance(LEASE - SECOND)
    assert await timed.renew(owner, [(assigned.id, 0), (started, 0)], 3 * SECOND) == []
    leases = [row["lease_until"] for row in await timed.rows(JOB, [assigned.id, started])]
    assert leases == [clock.now + 3 * SECOND] * 2


async def test_a_renewal_is_no_move_and_no_event(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (job,) = await claimed(timed, owner)
    before, events = await entity(timed, JOB, job.id), await timed.event_count()
    await clock.advance(SECOND)
    await timed.renew(owner, [(job.id, job.epoch)], LEASE)
    after = await entity(timed, JOB, job.id)
    assert {name for name in after if after[name] != before[name]} == {"lease_until"}
    assert await timed.event_count() == events


@keeps(Writer.renew, "Return the pairs that are no longer held")
async def test_the_jobs_that_are_no_longer_held_are_returned_and_the_others_renewed(
    timed: Store, clock: SetClock
) -> None:
    owner, other = await worker(timed), await worker(timed, name="bob")
    held, again, ended = [job.id for job in await claimed(timed, owner, 3)]
    (theirs,) = [job.id for job in await claimed(timed, other)]
    await moved(timed, JOB, again, "release", by="holder")
    await claim(timed, owner)
    await moved(timed, JOB, ended, "cancel")
    await clock.advance(SECOND)
    before = {row["id"]: row["lease_until"] for row in await timed.rows(JOB, [again, ended, theirs])}
    tokens = [(again, 0), (held, 0), (ended, 0), (theirs, 0), (12345, 0)]
    assert [id for id, _ in await timed.renew(owner, tokens, LEASE)] == [again, ended, theirs, 12345]
    assert (await entity(timed, JOB, held))["lease_until"] == clock.now + LEASE
    assert {row["id"]: row["lease_until"] for row in await timed.rows(JOB, [again, ended, theirs])} == before


@keeps(Writer.renew, "Return the pairs that are no longer held")
async def test_a_lease_that_is_over_cannot_be_renewed(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (job,) = await claimed(timed, owner)
    assert job.lease_until is not None
    await clock.advance(job.lease_until - clock.now)
    assert await timed.renew(owner, [(job.id, job.epoch)], LEASE) == [(job.id, job.epoch)]
    assert (await entity(timed, JOB, job.id))["lease_until"] == job.lease_until


async def test_nothing_to_renew_is_nothing_lost(store: Store) -> None:
    assert await store.renew(await worker(store), [], LEASE) == []


@keeps(Reader.overdue, "Return jobs whose lease has expired, the earliest expiry first")
async def test_a_job_that_came_back_to_its_worker_keeps_its_new_lease_and_loses_the_old(store: Store) -> None:
    owner = await worker(store)
    (first,) = await claimed(store, owner)
    await moved(store, JOB, first.id, "release", by="holder")
    (again,) = await claim(store, owner)
    both = [(first.id, first.epoch), (again.id, again.epoch)]
    assert await store.renew(owner, both, LEASE) == [both[0]]


async def test_the_jobs_whose_lease_is_over_are_seen_the_longest_first(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (late,) = await running(timed, owner, lease_us=3 * SECOND)
    (later,) = await claimed(timed, owner, lease_us=2 * SECOND)
    await claimed(timed, owner, lease_us=9 * SECOND)
    (ended,) = await running(timed, owner, lease_us=SECOND)
    await moved(timed, JOB, ended, "succeed", by="holder")
    await queued(timed)
    await clock.advance(4 * SECOND)
    overdue = await timed.overdue(10)
    assert [(job.id, job.state) for job in overdue] == [(later.id, "assigned"), (late, "running")]
    assert [job.id for job in await timed.overdue(1)] == [later.id]


async def test_a_lease_is_over_at_its_last_moment_and_not_before(timed: Store, clock: SetClock) -> None:
    (job,) = await claimed(timed, await worker(timed))
    assert job.lease_until is not None
    await clock.advance(job.lease_until - clock.now - 1)
    assert await timed.overdue(1) == []
    await clock.advance(1)
    assert await timed.overdue(1) == [job]


@keeps(Reader.overdue, "They might have moved on by the time they are read")
async def test_an_overdue_job_that_has_moved_on_is_not_expired(timed: Store, clock: SetClock) -> None:
    owner = await worker(timed)
    (job,) = await claimed(timed, owner)
    await clock.advance(LEASE)
    (seen,) = await timed.overdue(1)
    await moved(timed, JOB, job.id, "expire", by="reaper")
    await claim(timed, owner)
    assert seen.seq < (await entity(timed, JOB, job.id))["seq"]
    assert await timed.overdue(1) == []


@keeps(
    Reader.held,
    "Return those of these jobs that are running under this worker",
    "Jobs that it has lost or completed are left out",
)
async def test_what_a_worker_holds_is_told_without_what_it_lost_or_settled(store: Store) -> None:
    owner, other = await worker(store), await worker(store, name="bob")
    kept, lost, settled = await running(store, owner, 3)
    (theirs,) = await running(store, other)
    await moved(store, JOB, lost, "release", by="holder")
    await moved(store, JOB, settled, "succeed", by="holder")
    assert await store.held(owner, [kept, lost, settled, theirs, 12345]) == {kept: Held(0, stop_requested=False)}


@keeps(Writer.request_stop, "Request cancellation of a running job")
async def test_a_running_job_is_asked_to_come_to_an_end_and_goes_on_until_it_does(store: Store) -> None:
    owner = await worker(store)
    (id,) = await running(store, owner)
    events = await store.event_count()
    assert await store.request_stop(id, 1)
    assert await store.held(owner, [id]) == {id: Held(0, stop_requested=True)}
    assert (await entity(store, JOB, id))["state"] == "running"
    assert await store.event_count() == events


@keeps(Writer.request_stop, "Return False if the job is not running")
async def test_a_job_that_is_not_running_or_not_ours_cannot_be_asked_to_stop(store: Store) -> None:
    (waiting,) = await queued(store)
    assert not await store.request_stop(waiting, 1)
    (id,) = await running(store, await worker(store))
    assert not await store.request_stop(id, 2)

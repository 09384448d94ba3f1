"""Results of steps: kept once, for whoever holds the job; what holds jobs back, and how far they have come."""

from __future__ import annotations

import asyncio
import json

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Blob, Job, Store, open_store
from keptwork.store.contract.checkpoints import PROGRESS, Checkpoint, Report, Save
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.by_hand import Hand
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, entity, lost_jobs, moved, queued, started, worker
from tests.conformance.times import SECOND, SetClock
from tests.support.broken_sql import leave_out

OURS = 1


async def again(store: Store, job: Job, owner: int) -> Job:
    """The same job, given back and claimed anew."""
    await moved(store, JOB, job.id, "release", by="holder")
    (back,) = await claim(store, owner, 1, start=True)
    assert back.id == job.id
    return back


@keeps(Writer.checkpoint, "Store the results of steps of running jobs under their claims")
@keeps(Reader.checkpoints, "Return the checkpoints of a job in the order in which its steps saved them")
async def test_results_are_read_back_in_the_order_they_were_kept(timed: Store, clock: SetClock) -> None:
    job, other, blob = await started(timed), await started(timed), Blob.of(b"x" * 50_000)
    saves = [Save(job, "z", "1", None, "code", 3), Save(other, "z", "2"), Save(job, "large", blob.note, blob)]
    assert await timed.checkpoint(saves[:2]) == ["1", "2"]
    await clock.advance(SECOND)
    assert await timed.checkpoint(saves[2:]) == [blob.note]
    z, large = await timed.checkpoints(OURS, job.id)
    assert z == Checkpoint("z", "1", None, "code", 3, 0, z.created_at, None)
    assert large == Checkpoint("large", blob.note, blob.hash, None, 0, 0, large.created_at, None)
    assert large.created_at > z.created_at
    assert [one.result for one in await timed.checkpoints(OURS, other.id)] == ["2"]
    assert await timed.blob(OURS, blob.hash) == blob.content


@keeps(
    Writer.checkpoint,
    "Return the result that counts for each save",
    "The first result stored under a name counts, whichever claim saved it",
)
async def test_the_first_result_of_a_name_stands_whoever_saves_another(store: Store) -> None:
    owner = await worker(store)
    job = await started(store, owner)
    assert await store.checkpoint([Save(job, "get", "1"), Save(job, "other", "5")]) == ["1", "5"]
    assert await store.checkpoint([Save(job, "get", "2")]) == ["1"]
    later = await again(store, job, owner)
    assert await store.checkpoint([Save(later, "new", "3"), Save(later, "get", "4")]) == ["3", "1"]
    found = {one.name: (one.result, one.epoch) for one in await store.checkpoints(OURS, job.id)}
    assert found == {"get": ("1", 0), "other": ("5", 0), "new": ("3", 1)}


async def _stale_saves(store: Store, clock: SetClock) -> list[str]:
    """In which of the ways to lose a job its old holder could still save something."""
    saved = []
    async for way, job in lost_jobs(store, clock):
        await store.note_progress([Report(job, "{}")], SECOND)
        if await store.checkpoint([Save(job, "late", "1", Blob.of(b"late"))]) != [None]:
            saved.append(way)
        if await store.telemetry(JOB, job.id, OURS):
            saved.append(f"progress {way}")
    return saved


@keeps(
    Writer.checkpoint,
    "The entry is None if the claim no longer holds the job",
    "In that case, nothing is stored",
)
@keeps(Writer.note_progress, "A report has no effect if its claim no longer holds the job")
async def test_whoever_lost_the_job_saves_nothing(timed: Store, clock: SetClock, hand: Hand) -> None:
    assert await _stale_saves(timed, clock) == []
    counted = [(await hand.run(f"SELECT count(*) FROM {table}"))[0][0] for table in ("checkpoints", "telemetry")]
    assert counted == [0, 0]


@pytest.mark.parametrize(
    ("ignored", "caught"),
    [
        (("state", "epoch", "owner", "lease_until"), {"settled", "released"}),
        (("epoch", "owner"), {"claimed by another"}),
        (("lease_until",), {"lease over"}),
    ],
)
async def test_the_check_above_catches_a_statement_that_does_not_look(
    database_url: str, clock: SetClock, monkeypatch: pytest.MonkeyPatch, ignored: tuple[str, ...], caught: set[str]
) -> None:
    """Several conditions close most of the ways; a twin leaves out all that would notice."""
    wanted = rf"(?:(?<=AND )|(?<=WHERE ))(j\.)?({'|'.join(ignored)}) (=|>) (:\w+|g\.\w+|keptwork_now\(\)|\{{[\w.]+\}})"
    leave_out(monkeypatch, "checkpoint", wanted, "true")
    store = await open_store(database_url, clock=getattr(clock, "manual", None))
    try:
        assert caught <= set(await _stale_saves(store, clock))
    finally:
        await store.close()


@keeps(Reader.checkpoints, "Another tenant's job has none")
async def test_tenants_see_no_steps_of_each_other(store: Store, other_tenant: int) -> None:
    theirs = await started(store, tenant_id=other_tenant)
    await store.checkpoint([Save(theirs, "get", "1")])
    await store.checkpoint_changed(OURS, theirs.id, "get")
    assert await store.checkpoints(OURS, theirs.id) == []
    (found,) = await store.checkpoints(other_tenant, theirs.id)
    assert found.changed_at is None


@keeps(
    Writer.checkpoint_changed,
    "Record that a worker met a checkpoint that other code had saved",
    "The first time stays recorded",
)
async def test_the_first_meeting_with_other_code_is_noted(timed: Store, clock: SetClock) -> None:
    job = await started(timed)
    await timed.checkpoint([Save(job, "get", "1"), Save(job, "other", "1")])
    await clock.advance(SECOND)
    first = clock.now
    await timed.checkpoint_changed(OURS, job.id, "get")
    await clock.advance(SECOND)
    await timed.checkpoint_changed(OURS, job.id, "get")
    assert {one.name: one.changed_at for one in await timed.checkpoints(OURS, job.id)} == {"get": first, "other": None}


async def test_many_who_save_at_once_all_hear_what_stands(store: Store) -> None:
    jobs = [await started(store) for _ in range(6)]
    saves = [[Save(job, f"step {n}", json.dumps(n)) for n in range(5)] for job in jobs]
    said = await asyncio.gather(*(store.checkpoint(each) for each in saves))
    assert said == [["0", "1", "2", "3", "4"]] * 6


# --- progress


@keeps(
    Writer.note_progress,
    "Store the progress of running jobs as telemetry with an expiry",
    "A later report replaces the job's previous one",
)
async def test_only_the_last_report_of_each_job_is_kept(timed: Store, clock: SetClock) -> None:
    job, other = await started(timed), await started(timed)
    await timed.note_progress([Report(job, '{"n":1}'), Report(other, '{"n":2}')], 9 * SECOND)
    await timed.note_progress([Report(job, '{"n":3}')], 9 * SECOND)
    assert [seen.payload for seen in await timed.telemetry(JOB, job.id, OURS)] == ['{"n":3}']
    await clock.advance(SECOND)
    await timed.note_progress([Report(job, '{"n":4}')], 9 * SECOND)
    assert await timed.telemetry(JOB, job.id, OURS) == [(PROGRESS, clock.now, '{"n":4}')]
    assert [seen.payload for seen in await timed.telemetry(JOB, other.id, OURS)] == ['{"n":2}']
    await clock.advance(8 * SECOND)
    assert await timed.forget_telemetry() == 1


# --- holds


@keeps(Writer.lift_holds, "Lift all holds with exactly these names from queued jobs, and return the number of jobs")
async def test_holds_are_lifted_by_their_exact_names(store: Store) -> None:
    owner = await worker(store)
    names = ("version:a@1", "version:a@10", "version:a@", "limit:a", None)
    ids = [(await queued(store, held_by=name))[0] for name in names]
    assert [job.id for job in await claim(store, owner)] == ids[-1:]
    assert await store.lift_holds(["version:a@2", "version:%", ""]) == 0
    assert await store.lift_holds([]) == 0
    assert await store.lift_holds(["version:a@1", "version:b@1"]) == 1
    assert [job.id for job in await claim(store, owner)] == ids[:1]
    assert await store.lift_holds(["version:a@1"]) == 0


async def test_a_job_is_put_back_held_and_keeps_an_earlier_hold_when_none_is_said(store: Store) -> None:
    owner = await worker(store)
    job = await started(store, owner)
    await moved(store, JOB, job.id, "release", by="holder", values={"held_by": "version:a@1"})
    assert (await entity(store, JOB, job.id))["held_by"] == "version:a@1"
    assert await claim(store, owner) == []
    assert await store.lift_holds(["version:a@1"]) == 1
    (back,) = await claim(store, owner, 1, start=True)
    await moved(store, JOB, back.id, "release", by="holder")
    assert (await entity(store, JOB, job.id))["held_by"] is None

"""Content kept by its hash: large results, artifacts, and what becomes of what nothing refers to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.errors import LeaseLost
from keptwork.store import Blob, Job, NewJob, Store, open_store
from keptwork.store.contract.checkpoints import Save
from keptwork.store.contract.checkpoints_blobs import RESULT_BLOB
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.by_hand import Hand
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, decided, entity, log, lost_jobs, moved, started, undone, worker
from tests.conformance.times import SetClock
from tests.support.broken_sql import leave_out

OURS = 1
TEXT = "text/plain"
LONG_AGO, BY_NOW = 0, 1 << 60


def content(size: int = 50_000) -> Blob:
    """Something nobody else has; with every byte in it, so that nothing passes for text."""
    return Blob.of(bytes(range(256)) + os.urandom(size))


def large(blob: Blob) -> dict[str, Any]:
    """The values of a move that brings a large result."""
    return {"result": blob.note, RESULT_BLOB: blob}


async def count(hand: Hand, table: str) -> int:
    return int((await hand.run(f"SELECT count(*) FROM {table}"))[0][0])


# --- results


@keeps(
    Writer.apply,
    "A result that is a `Blob` is stored with the move, once for all jobs of the tenant with the same content",
)
@keeps(Reader.blob, "Return the content with this hash as it was stored")
async def test_the_same_large_result_of_many_jobs_is_stored_once(store: Store, hand: Hand) -> None:
    blob, other = content(), content()
    jobs = [await started(store) for _ in range(5)]
    changes = [await decided(store, JOB, job.id, "succeed", by="holder", values=large(blob)) for job in jobs[:3]]
    changes.append(await decided(store, JOB, jobs[3].id, "succeed", by="holder", values=large(other)))
    changes.append(await decided(store, JOB, jobs[4].id, "succeed", by="holder", values={"result": "1"}))
    assert await store.apply(changes) == []
    rows = [await entity(store, JOB, job.id) for job in jobs]
    assert [row["result_hash"] for row in rows] == [blob.hash] * 3 + [other.hash, None]
    assert [row["state"] for row in rows] == ["succeeded"] * 5
    assert json.loads(rows[0]["result"]) == {"blob": f"sha256:{blob.hash}", "size": blob.size}
    assert await count(hand, "blobs") == 2
    assert [await store.blob(OURS, one.hash) for one in (blob, other)] == [blob.content, other.content]


async def test_a_large_result_that_comes_too_late_leaves_nothing_behind(store: Store, hand: Hand) -> None:
    blob, job = content(), await started(store)
    late = await decided(store, JOB, job.id, "succeed", by="holder", values=large(blob))
    await moved(store, JOB, job.id, "release", by="holder")
    assert await store.apply([late]) == [late]
    assert await count(hand, "blobs") == 0
    assert (await entity(store, JOB, job.id))["result_hash"] is None


async def test_a_large_result_written_twice_after_a_lost_answer_is_there_once(store: Store, hand: Hand) -> None:
    blob, job = content(), await started(store)
    change = await decided(store, JOB, job.id, "succeed", by="holder", values=large(blob), actor="w:1")
    assert [await store.apply([change]), await store.apply([change])] == [[], []]
    assert (await entity(store, JOB, job.id))["result_hash"] == blob.hash
    assert await count(hand, "blobs") == 1


async def test_a_large_result_goes_with_the_transaction_that_brings_it(store: Store, hand: Hand) -> None:
    blob, job = content(), await started(store)
    async with undone(store) as transaction:
        await moved(transaction, JOB, job.id, "succeed", by="holder", values=large(blob))
        assert await transaction.blob(OURS, blob.hash) == blob.content
    assert await store.blob(OURS, blob.hash) is None
    assert (await entity(store, JOB, job.id))["state"] == "running"


async def test_the_log_does_not_grow_with_a_large_result(store: Store) -> None:
    blob, job = content(1 << 20), await started(store)
    await moved(store, JOB, job.id, "succeed", by="holder", values=large(blob))
    assert max(len(repr(event)) for event in await log(store, entity_id=job.id)) < 1000


# --- artifacts


@keeps(Writer.keep_artifact, "Store an artifact with a running job under its claim")
@keeps(Reader.artifacts, "Return the artifacts of a job by name")
async def test_artifacts_are_listed_by_name_and_read_byte_for_byte(store: Store) -> None:
    job, blob = await started(store), content()
    empty = Blob.of(b"")
    kept = [await store.keep_artifact(job, name, one, TEXT) for name, one in (("b", blob), ("a", empty))]
    assert await store.artifacts(OURS, job.id) == kept[::-1]
    assert [(a.name, a.size, a.hash, a.media_type, a.epoch) for a in kept] == [
        ("b", blob.size, blob.hash, TEXT, job.epoch),
        ("a", 0, empty.hash, TEXT, job.epoch),
    ]
    assert [await store.blob(OURS, artifact.hash) for artifact in kept] == [blob.content, b""]
    assert kept[0].created_at <= await store.now()


@keeps(Writer.keep_artifact, "The same name replaces the earlier artifact")
async def test_a_later_attempt_replaces_an_artifact_of_the_same_name(store: Store) -> None:
    owner = await worker(store)
    job = await started(store, owner)
    first, second = content(), content()
    await store.keep_artifact(job, "report", first, TEXT)
    await moved(store, JOB, job.id, "release", by="holder")
    (again,) = await claim(store, owner, 1, start=True)
    replaced = await store.keep_artifact(again, "report", second, "application/pdf")
    assert await store.artifacts(OURS, job.id) == [replaced]
    assert (replaced.hash, replaced.media_type, replaced.epoch) == (second.hash, "application/pdf", job.epoch + 1)


@keeps(Writer.keep_artifact, "The same content is stored once per tenant")
async def test_the_same_content_under_many_names_of_many_jobs_is_stored_once(store: Store, hand: Hand) -> None:
    blob = content()
    jobs = [await started(store) for _ in range(3)]
    for job in jobs:
        for name in ("a", "b"):
            await store.keep_artifact(job, name, blob, TEXT)
    await moved(store, JOB, jobs[0].id, "succeed", by="holder", values=large(blob))
    assert [await count(hand, table) for table in ("artifacts", "blobs")] == [6, 1]


async def test_the_same_new_content_kept_by_many_at_once_is_stored_once(store: Store, hand: Hand) -> None:
    blob = content()
    jobs = [await started(store) for _ in range(8)]
    await asyncio.gather(*(store.keep_artifact(job, "a", blob, TEXT) for job in jobs))
    assert [await count(hand, table) for table in ("artifacts", "blobs")] == [8, 1]


async def _stale_keeps(store: Store, clock: SetClock) -> list[str]:
    """In which of the ways to lose a job its old holder could still attach something to it."""
    attached = []
    async for way, job in lost_jobs(store, clock):
        with contextlib.suppress(LeaseLost):
            await store.keep_artifact(job, "late", content(), TEXT)
            attached.append(way)
    return attached


@keeps(
    Writer.keep_artifact,
    "Raise `LeaseLost` if the claim no longer holds the job",
    "In that case, nothing is stored",
)
async def test_whoever_lost_the_job_keeps_nothing_with_it(timed: Store, clock: SetClock, hand: Hand) -> None:
    assert await _stale_keeps(timed, clock) == []
    assert [await count(hand, table) for table in ("artifacts", "blobs")] == [0, 0]


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
    leave_out(monkeypatch, "keep_artifact", rf"\b({'|'.join(ignored)}) (=|>) (:\w+|\{{[\w.]+\}})", "true")
    store = await open_store(database_url, clock=getattr(clock, "manual", None))
    try:
        assert caught <= set(await _stale_keeps(store, clock))
    finally:
        await store.close()


# --- tenants


@keeps(Reader.blob, "Return None for another tenant's content, as for content that does not exist")
@keeps(Reader.artifacts, "Another tenant's job has none")
async def test_tenants_share_no_content_and_see_none_of_each_other(store: Store, hand: Hand, other_tenant: int) -> None:
    blob = content()
    ours, theirs = await started(store), await started(store, tenant_id=other_tenant)
    await store.keep_artifact(ours, "a", blob, TEXT)
    assert await store.blob(other_tenant, blob.hash) is None
    assert await store.blob(other_tenant, "no such hash") is None
    await store.keep_artifact(theirs, "a", blob, TEXT)
    assert await count(hand, "blobs") == 2
    assert await store.artifacts(other_tenant, ours.id) == await store.artifacts(OURS, theirs.id) == []
    assert len(await store.artifacts(OURS, ours.id)) == 1


# --- what nothing refers to


@keeps(
    Writer.drop_unused_blobs,
    "Delete at most `limit` blobs that nothing refers to and that were first stored before this time",
    "The oldest go first",
    "References from results, artifacts, checkpoints, and transcripts count",
    "Return their number",
)
async def test_only_old_content_that_nothing_refers_to_is_dropped_the_oldest_first(
    timed: Store, clock: SetClock, hand: Hand
) -> None:
    job, replaced, result, step = await started(timed), [content() for _ in range(4)], content(), content()
    await timed.checkpoint([Save(job, "step", step.note, step)])
    for blob in replaced:
        await timed.keep_artifact(job, "report", blob, TEXT)
        await clock.advance(1000)
    await moved(timed, JOB, job.id, "succeed", by="holder", values=large(result))
    assert await timed.drop_unused_blobs(LONG_AGO, 100) == 0
    assert await timed.drop_unused_blobs(clock.now - 3000, 100) == 1
    assert await timed.drop_unused_blobs(BY_NOW, 1) == 1
    assert [await timed.blob(OURS, blob.hash) is None for blob in replaced] == [True, True, False, False]
    assert await timed.drop_unused_blobs(BY_NOW, 100) == 1
    stays = (replaced[3], result, step)
    assert [await timed.blob(OURS, blob.hash) for blob in stays] == [blob.content for blob in stays]
    assert await timed.drop_unused_blobs(BY_NOW, 100) == 0


async def test_the_content_of_a_deleted_job_is_dropped_and_that_of_its_neighbours_stays(
    store: Store, hand: Hand
) -> None:
    shared, own, result, step = content(), content(), content(), content()
    gone, stays = await started(store), await started(store)
    for job, name, blob in ((gone, "a", shared), (gone, "b", own), (stays, "a", shared)):
        await store.keep_artifact(job, name, blob, TEXT)
    await store.checkpoint([Save(gone, "step", step.note, step)])
    await moved(store, JOB, gone.id, "succeed", by="holder", values=large(result))
    await hand.run(f"DELETE FROM jobs WHERE id = {gone.id}")
    assert [await store.artifacts(OURS, gone.id), await store.checkpoints(OURS, gone.id)] == [[], []]
    assert await store.drop_unused_blobs(BY_NOW, 100) == 3
    assert [await store.blob(OURS, blob.hash) for blob in (own, result, step)] == [None, None, None]
    assert await store.blob(OURS, shared.hash) == shared.content


async def _dropped_while_being_referred_to(store: Store) -> int:
    """How many blobs go that an open transaction refers to. PostgreSQL never lets the drop wait; SQLite has one writer
    at a time, so there it ends after the transaction."""
    job, blob, other = await started(store), content(), content()
    await store.keep_artifact(job, "a", blob, TEXT)
    await store.keep_artifact(job, "a", other, TEXT)  # from here on nothing refers to the first
    async with store.transaction() as transaction:
        await transaction.keep_artifact(job, "b", blob, TEXT)
        dropping = asyncio.ensure_future(store.drop_unused_blobs(BY_NOW, 100))
        await asyncio.wait({dropping}, timeout=0.2 if store.url.startswith("sqlite") else 30)
    return await dropping


@keeps(Writer.drop_unused_blobs, "A blob stays if an open transaction is about to refer to it")
async def test_content_that_an_open_transaction_refers_to_is_not_dropped(store: Store) -> None:
    assert await _dropped_while_being_referred_to(store) == 0


async def test_the_check_above_catches_a_reference_that_locks_nothing(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, "blobs_kept", "FOR KEY SHARE OF b")
    store = await open_store(emptied_database)
    try:
        assert await _dropped_while_being_referred_to(store) == 1
    finally:
        await store.close()


async def test_dropping_and_keeping_the_same_content_at_once_never_loses_what_is_referred_to(store: Store) -> None:
    blob, done, dropped = content(), asyncio.Event(), 0
    jobs = [await started(store) for _ in range(4)]

    async def flicker(job: Job) -> None:
        for number in range(1_000):
            if number >= 15 and dropped:  # until then it was referred to at every moment
                return
            await store.keep_artifact(job, "a", blob, TEXT)
            assert await store.blob(OURS, blob.hash) == blob.content
            await store.keep_artifact(job, "a", Blob.of(b"another"), TEXT)

    async def drop() -> None:
        nonlocal dropped
        while not done.is_set():
            dropped += await store.drop_unused_blobs(BY_NOW, 10)

    dropping = asyncio.create_task(drop())
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(flicker(job))
    done.set()
    await dropping
    assert dropped > 0


async def test_a_claim_goes_on_while_unused_blobs_are_dropped(store: Store) -> None:
    owner = await worker(store)
    job = await started(store, owner)
    for number in range(30):
        await store.keep_artifact(job, "a", content(20_000), f"text/{number}")
    await store.enqueue([NewJob("kind")] * 10)
    dropped, found = await asyncio.gather(store.drop_unused_blobs(BY_NOW, 20), claim(store, owner, 10))
    assert (dropped, len(found)) == (20, 10)
    assert await store.drop_unused_blobs(BY_NOW, 20) == 9

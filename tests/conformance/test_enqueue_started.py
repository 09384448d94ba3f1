"""A job that is started by the worker that enqueues it, in one write: it is as if it had gone through the queue."""

from __future__ import annotations

from keptwork.core.lifecycles import JOB
from keptwork.store import Job, NewJob, Store
from keptwork.store.contract.records import JOB_COLUMNS
from keptwork.store.contract.store import Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, claim, entity, log, worker

SAID = {"payload": '{"n": 1}', "priority": 3, "actor": "ann", "correlation_id": "c", "trace_id": "t", "hold_key": "h"}
TIMES = ("created_at", "updated_at", "started_at", "run_at", "lease_until")


async def started(store: Store, owner: int, **fields: object) -> Job:
    return await store.enqueue_started(NewJob("kind", **fields), owner, LEASE, 77)  # type: ignore[arg-type]


@keeps(
    Writer.enqueue_started,
    "Enqueue a job and, if its queue is served and the worker may claim, start it under that worker",
    "The job must be due now and have no key, no limit, and no crew",
    "Both are three moves and three events in one write",
    "Only a worker that has just found nothing due may call this, so that the job overtakes no other",
)
async def test_it_is_as_if_it_had_been_enqueued_claimed_and_started(store: Store) -> None:
    owner = await worker(store, "RUNNING")
    at_once = await started(store, owner, **SAID)
    await store.enqueue([NewJob("kind", **SAID)])  # type: ignore[arg-type]
    (usual,) = await claim(store, owner, start=True, claim_id=77)
    rows = [await entity(store, JOB, job.id) for job in (at_once, usual)]
    assert [{k: v for k, v in row.items() if k not in ("id", *TIMES)} for row in rows[:1]] == [
        {k: v for k, v in row.items() if k not in ("id", *TIMES)} for row in rows[1:]
    ]
    assert {name: at_once[name] for name in JOB_COLUMNS} == {name: rows[0][name] for name in JOB_COLUMNS}
    assert rows[0]["created_at"] < rows[0]["started_at"] == rows[0]["updated_at"]
    assert rows[0]["lease_until"] - rows[0]["created_at"] == LEASE
    stories = [[event[5:8] + event[9:18] for event in await log(store, entity_id=job.id)] for job in (at_once, usual)]
    assert stories[0] == stories[1]
    assert [event.seq for event in await log(store, entity_id=at_once.id)] == [1, 2, 3]


@keeps(Writer.enqueue_started, "If the job cannot start, it is returned queued")
async def test_in_a_paused_queue_or_for_a_worker_that_may_not_claim_it_is_only_queued(store: Store) -> None:
    ready, paused = await worker(store, "RUNNING"), await worker(store, "PAUSED")
    await store.set_queue_paused("still", True)
    for job in (await started(store, ready, queue="still"), await started(store, paused)):
        assert (job.state, job.owner, job.attempts) == ("queued", None, 0)
        assert [event.trigger for event in await log(store, entity_id=job.id)] == ["enqueue"]


async def test_nobody_else_can_claim_what_was_started(store: Store) -> None:
    job = await started(store, await worker(store))
    assert await claim(store, await worker(store)) == []
    assert (job.state, job.attempts, job.epoch) == ("running", 1, 0)

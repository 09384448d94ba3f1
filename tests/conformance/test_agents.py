"""Agent jobs in the store: found by their jobs, listed, told what calls came to, and the records of their ends."""

from __future__ import annotations

import asyncio
from typing import Any

from keptwork.core.lifecycles import AGENT, JOB
from keptwork.store import Job, NewJob, Store
from keptwork.store.contract.agents import AgentAudit
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, entity, moved, started
from tests.conformance.times import SetClock

OURS = 1


async def agent(store: Store, job: int | None = None, **columns: Any) -> int:
    return await store.create(AGENT, description="say hello", job_id=job, **columns)


def audit(agent: int, tenant_id: int = OURS, **other: Any) -> AgentAudit:
    record = AgentAudit(agent, tenant_id, 2, "say hello", "Failed", "no", "[]", None, 1, 3, 2, 100, 10, 5, "hm", 5, 9)
    return record._replace(**other)


async def theirs(store: Store) -> int:
    return await store.add_tenant("other")


@keeps(
    Reader.agents_of_jobs, "Return the whole rows of the agent jobs that these jobs run, in the order of their creation"
)
async def test_agent_jobs_are_found_by_their_jobs(store: Store) -> None:
    jobs = await store.enqueue([NewJob("kind")] * 3)
    first, second = [await agent(store, job) for job in jobs[:2]]
    await agent(store)
    rows = await store.agents_of_jobs(jobs[::-1])
    assert [(row["id"], row["job_id"]) for row in rows] == [(first, jobs[0]), (second, jobs[1])]
    assert rows[0] == await entity(store, AGENT, first)
    assert await store.agents_of_jobs([jobs[2]]) == []


@keeps(
    Reader.agents,
    "Return at most `limit` agent jobs of a tenant, newest first, with IDs below `after`",
    "They are in one of these states, or in any state by default",
)
async def test_agent_jobs_are_listed_newest_first(store: Store) -> None:
    first, second, third = [await agent(store) for _ in range(3)]
    other = await theirs(store)
    await agent(store, tenant_id=other)
    await moved(store, AGENT, second, "success")
    assert [row["id"] for row in await store.agents(OURS)] == [third, second, first]
    assert [row["id"] for row in await store.agents(OURS, states=["INIT"])] == [third, first]
    assert [row["id"] for row in await store.agents(OURS, after=third, limit=1)] == [second]


@keeps(Reader.agents_left_behind, "Return at most `limit` unfinished agent jobs whose job has ended or was deleted")
async def test_agent_jobs_that_were_left_behind_are_found(store: Store) -> None:
    jobs = await store.enqueue([NewJob("kind")] * 3)
    waiting, ended, told = [await agent(store, job) for job in jobs]
    gone, _ = await agent(store, 12345), await agent(store)
    assert [row["id"] for row in await store.agents_left_behind(10)] == [gone]
    for job in jobs[1:]:
        await moved(store, JOB, job, "cancel", by="operator")
    await moved(store, AGENT, told, "failure")
    assert [row["id"] for row in await store.agents_left_behind(10)] == [ended, gone]
    assert [row["id"] for row in await store.agents_left_behind(1)] == [ended]
    assert waiting


@keeps(
    Writer.still_claimed,
    "In a transaction, return whether a job still runs under the claim that returned it",
    "The claim's lease must be valid",
)
async def test_a_claim_stands_until_its_lease_is_over_or_somebody_ends_it(timed: Store, clock: SetClock) -> None:
    store = timed
    lost, cancelled, kept = [await started(store) for _ in range(3)]

    async def stands(job: Job) -> bool:
        return await store.atomically(lambda tx: tx.still_claimed(job))

    assert [await stands(job) for job in (lost, cancelled, kept)] == [True] * 3
    await moved(store, JOB, cancelled.id, "cancel", by="operator")
    lost.epoch += 1
    assert [await stands(job) for job in (lost, cancelled, kept)] == [False, False, True]
    await clock.advance(LEASE)
    assert not await stands(kept)


@keeps(Writer.still_claimed, "If so, the claim cannot be lost before the transaction ends")
async def test_a_claim_that_stands_is_not_taken_away_meanwhile(store: Store) -> None:
    job = await started(store)
    async with store.transaction() as tx:
        assert await tx.still_claimed(job)
        cancelling = asyncio.create_task(moved(store, JOB, job.id, "cancel", by="operator"))
        assert not (await asyncio.wait([cancelling], timeout=0.2))[0]
        assert (await tx.rows(JOB, [job.id], ("state",)))[0]["state"] == "running"
    await cancelling
    assert (await entity(store, JOB, job.id))["state"] == "cancelled"


@keeps(
    Writer.note_call,
    "Store the last answer of the agent job that this job runs, and the number of its call",
    "This is not a move and writes no event",
)
async def test_the_last_answer_is_kept_with_its_agent_job(store: Store) -> None:
    (job,) = await store.enqueue([NewJob("kind")])
    key = await agent(store, job)
    events = await store.event_count()
    for call, said in ((1, "hello"), (2, "good-bye")):
        await store.note_call(job, call, said)
    row = await entity(store, AGENT, key)
    assert (row["last_call"], row["llm_response"]) == (2, "good-bye")
    assert (row["seq"], await store.event_count()) == (1, events)


@keeps(
    Writer.put_agent_audit,
    "Store the audit record of a finished agent job",
    "An existing record stays",
)
@keeps(
    Reader.agent_audits,
    "Return at most `limit` audit records of a tenant's finished agent jobs, newest first",
    "Their IDs are below `after`",
    "They are all, or that of one agent job",
)
async def test_the_record_of_an_end_is_kept_once(store: Store) -> None:
    first, second = [await agent(store) for _ in range(2)]
    other = await theirs(store)
    foreign = await agent(store, tenant_id=other)
    for record in (audit(first), audit(second), audit(foreign, other), audit(first, status="Completed")):
        await store.put_agent_audit(record)
    assert await store.agent_audits(OURS) == [audit(second), audit(first)]
    assert await store.agent_audits(OURS, agent=first) == [audit(first)]
    assert await store.agent_audits(OURS, agent=foreign) == []
    assert await store.agent_audits(OURS, after=second, limit=1) == [audit(first)]

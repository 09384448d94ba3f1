"""Overrides, and what the store tells those who look for what is wrong."""

from __future__ import annotations

import pytest

from keptwork.audit.verify import verify
from keptwork.core.lifecycles import BREAKER, JOB, LIFECYCLES, RUN, WORKSTREAM, WORKSTREAM_STEP, override
from keptwork.store import NewJob, Store
from keptwork.store.contract.flows_steps import NewGate
from keptwork.store.contract.records import Birth
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import CREATED, NEEDED, claim, entity, log, moved, queued, running, started, worker


@keeps(Writer.apply, "An override is written like a move and also leaves final states")
@pytest.mark.parametrize("name", sorted(CREATED))
async def test_an_override_leads_from_every_state_to_every_other(store: Store, name: str) -> None:
    lifecycle = LIFECYCLES[name]
    id = await store.create(lifecycle, **NEEDED[name])
    for source in lifecycle.states:
        for target in lifecycle.states:
            for state in (source, target):
                row = await entity(store, lifecycle, id)
                change = override(lifecycle, row, state.name, reason="to see", actor="ann")
                assert await store.apply([change]) == []
            row = await entity(store, lifecycle, id)
            assert (row["state"], row["move"]) == (target.name, "override")
            assert (row["completed_at"] is not None) == target.final
    events = (await log(store, entity=name))[1:]
    assert {event.type for event in events} == {lifecycle.override_event}
    assert {event.reason for event in events} == {"to see"}
    assert (await verify(store)).clean


async def test_an_overridden_job_is_nobodys_and_its_worker_writes_too_late(store: Store) -> None:
    job = await started(store)
    row = await entity(store, JOB, job.id)
    assert await store.apply([override(JOB, row, "queued", reason="it hangs", actor="ann")]) == []
    row = await entity(store, JOB, job.id)
    assert (row["epoch"], row["lease_until"]) == (job.epoch + 1, None)
    assert await store.renew(job.owner or 0, [(job.id, job.epoch)], 1_000) == [(job.id, job.epoch)]
    assert [again.id for again in await claim(store, await worker(store), 1)] == [job.id]


async def test_an_override_that_came_too_late_changes_nothing(store: Store) -> None:
    (id,) = await queued(store)
    change = override(JOB, await entity(store, JOB, id), "failed", reason="no", actor="ann")
    await moved(store, JOB, id, "cancel")
    assert await store.apply([change]) == [change]
    assert (await entity(store, JOB, id))["state"] == "cancelled"


# --- what is wrong


async def a_flow(store: Store, ended: bool = False) -> tuple[int, int]:
    """A workstream with one step, begun and perhaps ended."""
    flow = await store.create(WORKSTREAM, **NEEDED["workstream"])
    (step,) = await store.create_many(WORKSTREAM_STEP, [{"flow_id": flow, "name": "a"}], Birth())
    await moved(store, WORKSTREAM, flow, "start_execution")
    if ended:
        await moved(store, WORKSTREAM, flow, "abandon")
    return flow, step


async def amiss(store: Store, **how: int) -> list[int]:
    return await store.ended_amiss(WORKSTREAM, "S_SUCCESS", ["S_FAILED", "S_ABANDONED"], **how)


@keeps(
    Reader.ended_amiss,
    "Return finished flows of one kind that still have an unfinished step or job, or an open approval",
    "Also return flows that finished with `success` although a step finished in a state in `otherwise`",
    "There are at most `limit`, with IDs above `after`",
)
async def test_flows_that_ended_amiss_are_found(store: Store) -> None:
    with_step, _ = await a_flow(store, ended=True)
    with_job, step = await a_flow(store, ended=True)
    await moved(store, WORKSTREAM_STEP, step, "abandon")
    await store.enqueue([NewJob("kind", step_id=step, tree_id=with_job)])
    asking, step = await a_flow(store, ended=True)
    await moved(store, WORKSTREAM_STEP, step, "abandon")
    await store.open_gate(NewGate(step, 1, "a", "sure?", "digest"))
    falsely, step = await a_flow(store)
    await moved(store, WORKSTREAM_STEP, step, "abandon")
    await moved(store, WORKSTREAM, falsely, "all_steps_succeed")
    well, step = await a_flow(store)
    await moved(store, WORKSTREAM_STEP, step, "skip")
    await moved(store, WORKSTREAM, well, "all_steps_succeed")
    await a_flow(store)
    assert await amiss(store) == [with_step, with_job, asking, falsely]
    assert await amiss(store, after=with_step, limit=2) == [with_job, asking]
    assert await store.ended_amiss(RUN, "SUCCEEDED", ["FAILED"]) == []


@keeps(
    Reader.lost_steps,
    "Return at most `limit` steps in these states that no job runs",
    "Their own job has ended or was deleted",
)
async def test_steps_whose_job_has_ended_are_found(store: Store) -> None:
    owner, found = await worker(store), []
    for ending in ("fail", None, "cancel"):
        flow, step = await a_flow(store)
        await store.enqueue([NewJob("kind", step_id=step, tree_id=flow)])
        (job,) = await claim(store, owner, 1, start=True)
        if ending:
            await moved(store, JOB, job.id, ending, by="holder")
            found.append((step, flow))
    assert [row["id"] for row in await store.lost_steps(["S_RUNNING"], 10)] == [step for step, _ in found]
    assert len(await store.lost_steps(["S_RUNNING"], 1)) == 1
    assert await store.lost_steps(["S_RETRYING"], 10) == []
    await store.enqueue([NewJob("kind", step_id=found[0][0], tree_id=found[0][1])])
    assert [row["id"] for row in await store.lost_steps(["S_RUNNING"], 10)] == [found[1][0]]


@keeps(
    Reader.long_at_work,
    "Return at most `limit` claimed jobs that have long been in one of these states",
    "They entered it before `before`, the longest ago first",
)
async def test_jobs_that_take_long_are_found(store: Store) -> None:
    first, second = await running(store, await worker(store), 2)
    now = await store.now()
    assert [row["id"] for row in await store.long_at_work(["running"], now, 10)] == [first, second]
    assert [row["id"] for row in await store.long_at_work(["running"], now, 1)] == [first]
    assert await store.long_at_work(["running"], now - 60_000_000, 10) == []
    assert await store.long_at_work(["assigned"], now, 10) == []


@keeps(Reader.unleased, "Return at most `limit` jobs in a claimed state that have no lease")
async def test_jobs_without_a_lease_are_found(store: Store) -> None:
    ids = await running(store, await worker(store), 3)
    for id in ids[:2]:
        row = await entity(store, JOB, id)
        await store.apply([override(JOB, row, "running", reason="to see")])
    assert [row["id"] for row in await store.unleased(10)] == ids[:2]
    assert len(await store.unleased(1)) == 1


@keeps(
    Reader.holds,
    "Return what holds queued jobs, other than limits",
    "Each entry has a tenant, a hold, the number of jobs, and since when the oldest is held",
)
async def test_what_holds_jobs_is_told_and_let_go(store: Store) -> None:
    other = await store.add_tenant("other")
    await queued(store, 2, held_by="breaker:a")
    await queued(store, held_by="breaker:ab")
    await queued(store, held_by="breaker:a", limit_key="*:kind")
    await queued(store, held_by="limit", limit_key="*:kind")
    await queued(store, held_by="breaker:a", tenant_id=other)
    holds = await store.holds()
    assert [(one.tenant_id, one.held_by, one.jobs) for one in holds] == [
        (1, "breaker:a", 3),
        (1, "breaker:ab", 1),
        (other, "breaker:a", 1),
    ]
    now = await store.now()
    assert all(0 < one.since <= now for one in holds)
    assert await store.let_go(1, "breaker:a", 9) == 3
    assert [(one.tenant_id, one.held_by) for one in await store.holds()] == [(1, "breaker:ab"), (other, "breaker:a")]
    assert len(await claim(store, await worker(store), 10)) == 2  # the third waits for its limit


@keeps(Reader.unclosed_breakers, "Return at most `limit` breakers of any tenant that are not closed")
async def test_breakers_that_are_not_closed_are_found(store: Store) -> None:
    ids = [await store.create(BREAKER, **{**NEEDED["breaker"], "name": name}) for name in "abc"]
    for id in ids[:2]:
        await moved(store, BREAKER, id, "trip")
    await moved(store, BREAKER, ids[1], "probe")
    assert [row["id"] for row in await store.unclosed_breakers(10)] == ids[:2]
    assert len(await store.unclosed_breakers(1)) == 1


@keeps(Reader.forks, "Return the workstreams that were forked from this one, newest first")
async def test_forks_are_found_from_what_they_were_forked_from(store: Store) -> None:
    flow, _ = await a_flow(store)
    forks = [await store.create(WORKSTREAM, **NEEDED["workstream"], forked_from=flow) for _ in range(2)]
    assert [row["id"] for row in await store.forks(flow)] == forks[::-1]
    assert await store.forks(forks[0]) == []


@keeps(Reader.resumption, "Return the flow of this kind that resumes an unsuccessful one, or None if there is none")
async def test_one_flow_continues_a_flow_that_failed(store: Store) -> None:
    flow, _ = await a_flow(store)
    assert await store.resumption(WORKSTREAM, flow) is None
    await store.create(WORKSTREAM, **NEEDED["workstream"], forked_from=flow)
    assert await store.resumption(WORKSTREAM, flow) is None, "that one was forked to run steps anew"
    new = await store.create(WORKSTREAM, **NEEDED["workstream"], forked_from=flow, resumes=1)
    assert (await store.resumption(WORKSTREAM, flow), await store.resumption(RUN, flow)) == (new, None)

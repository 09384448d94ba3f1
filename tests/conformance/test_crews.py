"""Crews in the store: which jobs are theirs, who has workers and who waits for them, and what should have moved."""

from __future__ import annotations

from typing import Any

from keptwork.core.lifecycles import CREW, JOB
from keptwork.store import Job, NewJob, Store
from keptwork.store.contract.crews import HELD_BY_QUOTA, InLine, Quota, waits_for_crew
from keptwork.store.contract.records import LimitRule
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, entity, moved, started, worker
from tests.conformance.times import SECOND, SetClock
from tests.conformance.waiting import LATER

OURS = 1


async def crew(store: Store, at: str = "RUNNING", **columns: Any) -> int:
    """A crew brought into a state by its own moves."""
    key = await store.create(CREW, **{"task_description": "dig", "work": "{}", **columns})
    ways = {"SUBMITTED": (), "PENDING": ("validate",), "RUNNING": ("validate", "allocate_resources")}
    more = {"COMPLETED": ("success",), "FAILED": ("error",), "CANCELED": ("cancel",)}
    depth = columns.get("depth", 0)
    for trigger in (*ways.get(at, ways["RUNNING"]), *more.get(at, ())):
        await moved(store, CREW, key, trigger, parent_depth=depth - 1)
    return key


async def shares(store: Store, key: int, number: int = 1, **fields: Any) -> list[int]:
    return await store.enqueue([NewJob("kind", crew_id=key, tree_id=key, **fields)] * number)


async def waits(store: Store, job: Job, inner: int, held_by: str | None = HELD_BY_QUOTA) -> None:
    values = {"run_at": LATER, "waits_for": waits_for_crew(inner), "held_by": held_by}
    await moved(store, JOB, job.id, "snooze", by="holder", values=values)


async def end(store: Store, job: int, trigger: str = "cancel") -> None:
    await moved(store, JOB, job, trigger, by="operator" if trigger == "cancel" else "holder")


async def other_tenant(store: Store) -> int:
    return await store.add_tenant("other")


@keeps(Reader.crew_by_key, "Return the crew that a tenant created with this idempotency key, or None if there is none")
async def test_a_key_names_one_crew_of_a_tenant(store: Store) -> None:
    key = await crew(store, key="order-17")
    assert await store.crew_by_key(OURS, "order-17") == key
    assert await store.crew_by_key(OURS, "order-18") is None
    assert await store.crew_by_key(await other_tenant(store), "order-17") is None


@keeps(
    Reader.crews,
    "Return at most `limit` crews of a tenant, newest first, with IDs below `after`",
    "Crews inside others are included only with `inside`",
)
async def test_crews_are_listed_newest_first(store: Store) -> None:
    outer = await crew(store)
    inner = await crew(store, parent_id=outer, depth=1)
    done = await crew(store, "COMPLETED")
    theirs = await crew(store, tenant_id=await other_tenant(store))
    assert [row["id"] for row in await store.crews(OURS)] == [done, outer]
    assert [row["id"] for row in await store.crews(OURS, inside=True)] == [done, inner, outer]
    assert [row["id"] for row in await store.crews(OURS, states=["RUNNING"], inside=True)] == [inner, outer]
    assert [row["id"] for row in await store.crews(OURS, inside=True, after=done, limit=1)] == [inner]
    assert theirs not in {row["id"] for row in await store.crews(OURS, inside=True)}


@keeps(Reader.shares, "Return the jobs of these crews, all or only the unfinished ones, sorted by crew and creation")
@keeps(Reader.crews_of_step, "Return the crews that run for a step of a flow, newest first")
async def test_the_crews_of_a_step_are_found(store: Store) -> None:
    first, second = [await store.create(CREW, task_description="dig", step_id=7) for _ in range(2)]
    await store.create(CREW, task_description="dig", step_id=8)
    assert [row["id"] for row in await store.crews_of_step(7)] == [second, first]


@keeps(Reader.subcrews, "Return the crews directly inside these crews, all or only the unfinished ones")
async def test_what_belongs_to_a_crew(store: Store) -> None:
    outer, other = await crew(store), await crew(store)
    mine, theirs = await shares(store, outer, 3), await shares(store, other, 1)
    await store.enqueue([NewJob("kind")])
    await end(store, mine[1])
    assert [job.id for job in await store.shares([other, outer])] == [*mine, *theirs]
    assert [job.id for job in await store.shares([outer], unfinished_only=True)] == [mine[0], mine[2]]
    inner, ended = [await crew(store, at, parent_id=outer, depth=1) for at in ("RUNNING", "FAILED")]
    await crew(store, parent_id=inner, depth=2)
    assert [row["id"] for row in await store.subcrews([outer, other])] == [inner, ended]
    assert [row["id"] for row in await store.subcrews([outer], unfinished_only=True)] == [inner]


@keeps(
    Reader.quotas,
    "Return, per depth, the quota of a tenant's crews and its use",
    "Each has the workers that the crews have, and whether a share or crew is in line",
    "A depth with none of these is left out",
    "A share counts as a worker until it ends, except while its quota holds it",
)
@keeps(Writer.set_quotas, "Set the maximum concurrent workers of a tenant's crews for these depths")
async def test_shares_count_against_the_quota_of_their_depth(store: Store) -> None:
    assert await store.quotas(OURS) == []
    outer, inner = await crew(store), await crew(store, depth=2)
    first, _ = await shares(store, outer, 2)
    await shares(store, inner, 1)
    await store.set_quotas(OURS, {0: 7, 1: 4})
    await store.set_quotas(OURS, {0: 6})
    assert await store.quotas(OURS) == [Quota(0, 6, 2), Quota(1, 4, 0), Quota(2, None, 1)]
    assert await store.quotas(await other_tenant(store)) == []
    await end(store, first)
    (second,) = [job for job in await claim(store, await worker(store), 2, start=True) if job.crew_id == outer]
    assert (await store.quotas(OURS))[0] == Quota(0, 6, 1)
    await waits(store, second, inner)
    assert (await store.quotas(OURS))[0] == Quota(0, 6, 0)
    await store.wake_for_crews([second.id], [inner])
    await crew(store, "PENDING", depth=2)
    await crew(store, "PENDING", depth=4)
    assert await store.quotas(OURS) == [
        Quota(0, 6, 0, True),
        Quota(1, 4, 0),
        Quota(2, None, 1, True),
        Quota(4, None, 0, True),
    ]


@keeps(
    Reader.in_line,
    "Return what waits for workers of a depth",
    "It lists shares that only their quota holds, and PENDING crews, at most `limit` of each",
    "A crew that needs more than `most` workers is passed over",
)
@keeps(
    Writer.wake_for_crews,
    "Make those of these jobs due that wait for one of these crews, and return their number",
    "Other holds of a job stay",
)
@keeps(Writer.go_on, "Lift the quota hold of these shares so that they can be claimed, and return their number")
async def test_shares_wait_for_crews_and_then_in_line(store: Store) -> None:
    outer, inner = await crew(store), await crew(store, depth=1)
    first, second, third = [await started(store, crew_id=outer) for _ in range(3)]
    await waits(store, first, inner)
    await waits(store, second, inner)
    pending = [await crew(store, "PENDING", worker_count=number) for number in (3, 1)]
    await crew(store, "PENDING", depth=1)
    await crew(store, "PENDING", tenant_id=await other_tenant(store))
    assert await store.in_line(OURS, 0, 3, 5) == InLine([], [(pending[0], 3), (pending[1], 1)])
    assert await store.in_line(OURS, 0, 2, 5) == InLine([], [(pending[1], 1)])
    assert await store.wake_for_crews([first.id, second.id, third.id], [outer]) == 0
    assert await store.wake_for_crews([second.id], [outer, inner]) == 1
    assert await store.wake_for_crews([first.id, second.id], [inner]) == 1
    assert (await store.in_line(OURS, 0, 3, 5)).shares == [second.id, first.id]
    assert await store.in_line(OURS, 0, 3, 1) == InLine([second.id], [(pending[0], 3)])
    assert await claim(store, await worker(store)) == []
    assert await store.go_on([first.id, third.id]) == 1
    assert await store.go_on([first.id]) == 0
    assert [job.id for job in await claim(store, await worker(store))] == [first.id]
    assert (await entity(store, JOB, second.id))["held_by"] == HELD_BY_QUOTA


async def test_a_share_that_goes_on_is_held_back_by_its_limit_again(store: Store) -> None:
    await store.declare_limits([LimitRule("job", "kind", 1)])
    outer, inner = await crew(store), await crew(store, depth=1)
    held = {"crew_id": outer, "limit_key": "*:kind", "held_by": "limit"}
    await store.enqueue([NewJob("kind", **held)] * 2)  # type: ignore[arg-type]
    await store.pump()
    (first,) = await claim(store, await worker(store), 5, start=True)
    await waits(store, first, inner)
    await store.pump()
    (second,) = await claim(store, await worker(store), 5, start=True)
    await store.wake_for_crews([first.id], [inner])
    await store.go_on([first.id])
    await store.pump()
    assert await claim(store, await worker(store)) == []
    await moved(store, JOB, second.id, "succeed", by="holder")
    await store.pump()
    assert [job.id for job in await claim(store, await worker(store))] == [first.id]


@keeps(Reader.crew_tenants, "Return the tenants that have unfinished crews")
async def test_whose_crews_have_not_ended(store: Store) -> None:
    assert await store.crew_tenants() == []
    await crew(store, "CANCELED")
    theirs = await other_tenant(store)
    await crew(store, "PENDING", tenant_id=theirs)
    await crew(store, "PENDING", tenant_id=theirs)
    assert await store.crew_tenants() == [theirs]


@keeps(
    Reader.crews_amiss,
    "Return at most `limit` crews that should have moved, as (tenant, crew)",
    "Their deadline has passed, they were not validated, their parent crew has ended, the job that created "
    "them was cancelled, a share was unsuccessful, or no unfinished work is left",
)
async def test_crews_that_should_have_moved_are_found(timed: Store, clock: SetClock) -> None:
    store = timed
    sound = await crew(store)
    await shares(store, sound, 2)
    await crew(store, "COMPLETED", deadline_at=1)
    waiting = await crew(store, "PENDING", deadline_at=clock.now + 5 * SECOND)
    inner = await crew(store, parent_id=sound, depth=1)
    await shares(store, inner)
    assert await store.crews_amiss(10) == []
    amiss = [waiting]
    amiss.append(await crew(store, "SUBMITTED"))
    gone = await crew(store, "FAILED")
    amiss.append(await crew(store, parent_id=gone, depth=1))
    await shares(store, amiss[-1])
    (asker,) = await store.enqueue([NewJob("kind")])
    await end(store, asker)
    amiss.append(await crew(store, "PENDING", asker_id=asker))
    amiss.append(await crew(store))
    failed, _ = await shares(store, amiss[-1], 2)
    await end(store, failed)
    amiss.append(await crew(store))
    (done,) = await shares(store, amiss[-1], priority=5)
    await claim(store, await worker(store), 1, start=True)
    await moved(store, JOB, done, "succeed", by="holder")
    assert await store.crews_amiss(10) == [(OURS, key) for key in amiss[1:]]
    await clock.advance(6 * SECOND)
    assert await store.crews_amiss(10) == [(OURS, key) for key in amiss]
    assert await store.crews_amiss(2) == [(OURS, key) for key in amiss[:2]]


@keeps(Reader.outlived_crews, "Return at most `limit` finished crews that have unfinished shares, as (tenant, crew)")
async def test_crews_that_have_ended_without_their_shares_are_found(store: Store) -> None:
    await shares(store, await crew(store), 2)
    over = [await crew(store, "CANCELED"), await crew(store, "FAILED")]
    (done,) = await shares(store, over[0])
    await end(store, done)
    assert await store.outlived_crews(10) == []
    for one in over:
        await shares(store, one, 2)
    assert await store.outlived_crews(10) == [(OURS, one) for one in over]
    assert await store.outlived_crews(1) == [(OURS, over[0])]


@keeps(
    Reader.forgotten_askers,
    "Return at most `limit` jobs that wait for a crew, with the names of their waits",
    "Every crew that they created has ended",
)
async def test_jobs_that_wait_for_a_crew_that_has_ended_are_found(store: Store) -> None:
    askers = [await started(store) for _ in range(3)]
    crews = [
        await crew(store, at, asker_id=asker.id)
        for at, asker in zip(("RUNNING", "FAILED", "COMPLETED"), askers, strict=True)
    ]
    for asker, key in zip(askers, crews, strict=True):
        await waits(store, asker, key, None)
    found = [(asker.id, waits_for_crew(key)) for asker, key in list(zip(askers, crews, strict=True))[1:]]
    assert await store.forgotten_askers(OURS, 10) == found
    assert await store.forgotten_askers(OURS, 1) == found[:1]
    assert await store.forgotten_askers(await other_tenant(store), 10) == []

"""The situations tests start from: a worker, jobs in every state, a move decided and written, the log read back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from keptwork.core.lifecycles import JOB, LIFECYCLES, WORKER, Change, Lifecycle, Token, decide, insist
from keptwork.store import Event, EventFilter, Job, NewJob, Reader, Store, Transaction
from tests.conformance.times import SetClock

LEASE = 60_000_000
Verbs = Store | Transaction

_claims = count(1)

# What each lifecycle needs to be created, and the facts that let all of its guards agree.
NEEDED: dict[str, dict[str, Any]] = {
    "worker": {"name": "ann", "incarnation": "i-1", "workspace_id": "here"},
    "crew": {"task_description": "dig"},
    "run": {},
    "run-step": {"name": "first"},
    "workstream": {"max_retries": 3},
    "workstream-step": {"name": "first", "max_retries": 3},
    "breaker": {"name": "tool", "failure_threshold": 0, "success_threshold": 0, "cooldown_us": 0},
    "agent": {"description": "say hello"},
}
AGREEABLE = {
    "free_workers": 10,
    "dependencies_met": True,
    "permanent": True,
    "reason_code": "policy_violation",
}
CREATED = {name: LIFECYCLES[name] for name in NEEDED}


async def worker(store: Verbs, state: str = "IDLE", **columns: Any) -> int:
    """A worker brought into a state by its own moves."""
    id = await store.create(WORKER, **{**NEEDED["worker"], **columns})
    ways: dict[str, tuple[str, ...]] = {
        "IDLE": (),
        "RUNNING": ("start_task",),
        "PAUSED": ("start_task", "pause"),
        "COMPLETED": ("start_task", "complete_tasks"),
        "FAILED": ("start_task", "error_unrecoverable"),
        "TERMINATED": ("terminate",),
    }
    for trigger in ways[state]:
        await moved(store, WORKER, id, trigger)
    return id


async def queued(store: Verbs, number: int = 1, **fields: Any) -> list[int]:
    """That many jobs, all alike."""
    return await store.enqueue([NewJob("kind", **fields)] * number)


async def claimed(store: Verbs, owner: int, number: int = 1, lease_us: int = LEASE) -> list[Job]:
    """That many fresh jobs, claimed."""
    await queued(store, number)
    return await claim(store, owner, number, lease_us=lease_us)


async def claim(
    store: Verbs, owner: int, limit: int = 100, *queues: str, lease_us: int = LEASE, **how: Any
) -> list[Job]:
    """A claim of its own."""
    return await store.claim(owner, queues or ("default",), limit, lease_us, **{"claim_id": next(_claims), **how})


async def running(store: Verbs, owner: int, number: int = 1, lease_us: int = LEASE) -> list[int]:
    """That many fresh jobs, claimed and started."""
    ids = [job.id for job in await claimed(store, owner, number, lease_us)]
    for id in ids:
        await moved(store, JOB, id, "start", by="holder")
    return ids


async def started(store: Store, owner: int | None = None, **fields: Any) -> Job:
    """A fresh job, running, as its claim returned it."""
    await queued(store, **fields)
    owner = owner or await worker(store)
    (job,) = await claim(store, owner, 1, start=True)
    return job


async def lost_jobs(store: Store, clock: SetClock) -> AsyncIterator[tuple[str, Job]]:
    """Running jobs as their claims returned them, each lost in another way since; afterwards they are called off."""
    owner, other = await worker(store), await worker(store, name="bob")
    for way in ("settled", "released", "claimed by another", "lease over"):
        job = await started(store, owner)
        if way == "settled":
            await moved(store, JOB, job.id, "succeed", by="holder")
        elif way == "lease over":
            await clock.advance(LEASE)
        else:
            await moved(store, JOB, job.id, "release", by="holder")
            if way == "claimed by another":
                await claim(store, other, 1, start=True)
        yield way, job
        if way != "settled":
            await moved(store, JOB, job.id, "cancel")


async def in_state(store: Verbs, owner: int, state: str) -> int:
    """A fresh job in one of its three living states."""
    if state == "queued":
        return (await queued(store))[0]
    return (await claimed(store, owner))[0].id if state == "assigned" else (await running(store, owner))[0]


async def entity(store: Reader, lifecycle: Lifecycle, id: int) -> dict[str, Any]:
    """The row of an entity that must be there."""
    row = await store.get(lifecycle, id, None)
    assert row is not None
    return row


async def decided(
    store: Reader, lifecycle: Lifecycle, id: int, trigger: str, *, by: str = "operator", **facts: Any
) -> Change:
    """A move decided on the entity as it is, by its holder, by the reaper or by an operator."""
    row = await entity(store, lifecycle, id)
    token = Token(row["owner"], row["epoch"]) if by == "holder" else None
    right: dict[str, Any] = {"now": await store.now(), "token": token, "lease_over": by == "reaper"}
    return insist(decide(lifecycle, row, trigger, **right, **{**AGREEABLE, **facts}))


async def moved(store: Verbs, lifecycle: Lifecycle, id: int, trigger: str, **how: Any) -> Change:
    """A move decided and written."""
    change = await decided(store, lifecycle, id, trigger, **how)
    assert await store.apply([change]) == []
    return change


async def log(store: Reader, **wanted: Any) -> list[Event]:
    """Every committed event, oldest first.

    Read newest first: the other way PostgreSQL waits for every open transaction of the whole server, and tests of other
    processes have some.
    """
    return (await store.events(EventFilter(**wanted), limit=10_000, newest_first=True))[::-1]


async def settled(store: Reader) -> None:
    """Waits until reading oldest first shows everything, that is until no older transaction is open anywhere."""
    total = await store.event_count()

    async def shown() -> bool:
        return len(await store.events(limit=total + 1)) == total

    await eventually(shown)


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Looks until it holds; a database rings no bell."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - what is awaited happens in a server
            await asyncio.sleep(0.01)


@asynccontextmanager
async def undone(store: Store) -> AsyncIterator[Transaction]:
    """A transaction that an exception ends."""
    try:
        async with store.transaction() as transaction:
            yield transaction
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass

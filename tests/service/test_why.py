"""Why a job is not moving: each cause there is, made for real on both stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import BREAKER, JOB, WORKER
from keptwork.diagnostics.why_jobs import Cause, why
from keptwork.jobs.limits import declare
from keptwork.store import NewJob, Store
from keptwork.store.contract.budgets import NewBudget
from keptwork.store.contract.crews import HELD_BY_QUOTA, waits_for_crew
from keptwork.store.contract.records import LimitRule
from keptwork.store.contract.waits_approvals import NewApproval
from keptwork.workers.commands import SILENT_US
from tests.conformance.stage import LEASE, claim, moved, queued, worker
from tests.support.database_time import open_timed

FAR = 1 << 60
SERVES = '{"queues": ["default"], "kinds": ["kind"], "concurrency": 1, "version": "1"}'


async def serving(store: Store, serves: str = SERVES, state: str = "RUNNING") -> int:
    id = await worker(store, state, serves=serves)
    await store.beat(id)
    return id


async def running(store: Store, lease_us: int = LEASE) -> int:
    await queued(store)
    (job,) = await claim(store, await serving(store), 1, start=True, lease_us=lease_us)
    return job.id


async def settled(store: Store, trigger: str, **facts: Any) -> int:
    id = await running(store)
    await moved(store, JOB, id, trigger, by="holder", **facts)
    return id


async def waiting(store: Store, waits_for: str, run_at: int = FAR) -> int:
    return await settled(store, "snooze", values={"run_at": run_at, "waits_for": waits_for, "seen": FAR})


# --- one scene for each cause


async def ended(store: Store) -> int:
    return await settled(store, "fail", permanent=True, reason="no such page", values={"error": "no such page"})


async def asked_to_stop(store: Store) -> int:
    id = await running(store)
    assert await store.request_stop(id, 1)
    return id


async def orphaned(store: Store) -> int:
    id = await running(store)
    row = await store.get(JOB, id, 1)
    assert row is not None
    await moved(store, WORKER, row["owner"], "terminate")
    return id


async def lease_over(store: Store) -> int:
    return await running(store, lease_us=0)


async def asleep(store: Store) -> int:
    return await waiting(store, "sleep", await store.now() + 3_600_000_000)


async def children(store: Store) -> int:
    id = await running(store)
    await store.enqueue([NewJob("child", parent_id=id)] * 3)
    await moved(store, JOB, id, "snooze", by="holder", values={"run_at": FAR, "waits_for": "children"})
    return id


async def event(store: Store) -> int:
    return await waiting(store, "event paid; now")


async def approval(store: Store) -> int:
    await queued(store)
    (job,) = await claim(store, await serving(store), 1, start=True)
    asked = await store.open_approval(job, NewApproval("#approval 1", "Ship it?", scope="ops"))
    assert asked is not None
    await moved(
        store, JOB, job.id, "snooze", by="holder", values={"run_at": FAR, "waits_for": asked.waits_for, "seen": 0}
    )
    return job.id


async def limit(store: Store) -> int:
    await declare(store, [LimitRule("job", "kind", most=1)])
    ids = await queued(store, 2, limit_key="*:kind", held_by="limit")
    await store.pump()
    return ids[1]


async def version(store: Store) -> int:
    return (await queued(store, held_by="version:kind@1"))[0]


async def held(store: Store) -> int:
    return (await queued(store, held_by="budget:may"))[0]


async def breaker(store: Store) -> int:
    id = await store.create(BREAKER, name="tool:ruff", failure_threshold=1)
    values = {"failures": 1, "error": "it ended with 137"}
    await store.amend(BREAKER, [id], 1, failures=1)
    await moved(store, BREAKER, id, "trip", values=values)
    return (await queued(store, held_by="breaker:tool:ruff"))[0]


async def budget(store: Store) -> int:
    await store.make_budgets([NewBudget(1, 0, "tenant", "total", 2_000_000, 80, "config")])
    ((made, _),) = await store.budgets(1)
    await store.keep_budget(made._replace(wanted_micros=2_500_000))
    return (await queued(store, held_by="budget:tenant:total"))[0]


async def backoff(store: Store) -> int:
    return await settled(store, "retry", values={"error": "timed out", "delay_us": 3_600_000_000})


async def snoozed(store: Store) -> int:
    return await settled(store, "snooze", values={"delay_us": 3_600_000_000})


async def given_back(store: Store) -> int:
    return await settled(store, "release", reason="no handler here", values={"delay_us": 3_600_000_000})


async def delayed(store: Store) -> int:
    return (await queued(store, delay_us=3_600_000_000))[0]


async def queue_paused(store: Store) -> int:
    await store.set_queue_paused("default", True)
    return (await queued(store))[0]


async def queue_limit(store: Store) -> int:
    await declare(store, [LimitRule("queue", "default", most=1)])
    await running(store)
    return (await queued(store))[0]


async def no_worker(store: Store) -> int:
    return (await queued(store, queue="deserted place"))[0]


async def workers_paused(store: Store) -> int:
    await serving(store, state="PAUSED")
    return (await queued(store))[0]


async def no_handler(store: Store) -> int:
    await serving(store, SERVES.replace('kind"]', 'other"]'))
    return (await queued(store))[0]


async def in_line(store: Store) -> int:
    await serving(store)
    return (await queued(store, 4))[3]


async def due(store: Store) -> int:
    await serving(store)
    return (await queued(store))[0]


Scene = Callable[[Store], Awaitable[int]]


async def for_a_crew(store: Store) -> int:
    return await waiting(store, waits_for_crew(1))


async def for_a_worker(store: Store) -> int:
    return (await queued(store, crew_id=1, held_by=HELD_BY_QUOTA))[0]


SCENES: dict[Cause, tuple[Scene, str, str | None]] = {
    Cause.ENDED: (ended, "it has ended as failed (no such page)", "keptwork jobs retry job_"),
    Cause.RUNNING: (running, "is at it, in attempt 1 of 4", None),
    Cause.ASKED_TO_STOP: (asked_to_stop, "it was asked to stop", "--hard"),
    Cause.ORPHANED: (orphaned, "has gone; the job is taken back when its lease ends", None),
    Cause.LEASE_OVER: (lease_over, "is over, and no worker has taken the job back yet", "keptwork work"),
    Cause.ASLEEP: (asleep, "its handler sleeps", None),
    Cause.CHILDREN: (children, "it waits for 3 of the jobs it spawned to end", "keptwork jobs show"),
    Cause.EVENT: (event, "it waits for the event 'paid; now'", "keptwork jobs signal 'paid; now'"),
    Cause.APPROVAL: (approval, "it waits for somebody (ops) to approve: Ship it?", "keptwork approvals approve apr_"),
    Cause.LIMIT: (limit, "the limit *:kind holds it back: 1 of 1 are at work", "keptwork limits list"),
    Cause.VERSION: (version, "a version of its handler that no worker has: kind@1", "kind@1"),
    Cause.HELD: (held, "it is held back by budget:may", None),
    Cause.BREAKER: (
        breaker,
        ": it ended with 137; it cools down before a job may try",
        "keptwork breakers reset tool:ruff --reason",
    ),
    Cause.BUDGET: (
        budget,
        "the tenant's budget has $0.00 of $2.00 spent, and one call may cost $2.50, which is more than the whole cap",
        "keptwork budgets set tenant USD",
    ),
    Cause.BACKOFF: (backoff, "attempt 1 of 4 failed (timed out), and it waits to be retried", None),
    Cause.SNOOZED: (snoozed, "its handler put it off", None),
    Cause.GIVEN_BACK: (given_back, "a worker gave it back: no handler here", None),
    Cause.CREW: (for_a_crew, "it waits for the crew crew_", "keptwork why crew_"),
    Cause.QUOTA: (for_a_worker, "it is a share that could go on", "keptwork crews show crew_"),
    Cause.DELAYED: (delayed, "it was enqueued for later", None),
    Cause.QUEUE_PAUSED: (queue_paused, "its queue 'default' has been paused since", "keptwork queues resume default"),
    Cause.QUEUE_LIMIT: (
        queue_limit,
        "the limit queue:default holds it back: 1 of 1 are at work",
        "keptwork limits list",
    ),
    Cause.NO_WORKER: (no_worker, "no worker serves its queue 'deserted place'", "--queues 'deserted place'"),
    Cause.WORKERS_PAUSED: (
        workers_paused,
        "every worker that could take it is paused (ann)",
        "keptwork workers resume w_",
    ),
    Cause.NO_HANDLER: (no_handler, "none of the 1 workers of its queue has a handler for 'kind'", "declares it"),
    Cause.IN_LINE: (in_line, "3 jobs of its queue are due before it", None),
    Cause.DUE: (due, "nothing is in its way", None),
}
CLEARS = {Cause.ORPHANED, Cause.BREAKER, Cause.ASLEEP, Cause.BACKOFF, Cause.SNOOZED, Cause.GIVEN_BACK, Cause.DELAYED}


def test_every_cause_there_is_has_its_scene() -> None:
    assert set(SCENES) == set(Cause)


@pytest.mark.parametrize("cause", list(Cause))
async def test_it_names_the_cause_what_clears_it_and_what_to_do(store: Store, cause: Cause) -> None:
    scene, says, todo = SCENES[cause]
    id = await scene(store)
    _, found = await why(store, 1, public_id("job", id))
    assert found[0].cause is cause, found
    assert says in found[0].says
    assert (found[0].clears_at is not None) == (cause in CLEARS)
    assert (todo or "") in (found[0].todo or "")
    assert bool(todo) == bool(found[0].todo)


async def test_what_comes_next_is_told_too(store: Store) -> None:
    """Nothing clears by one obstacle alone when there are several."""
    await store.set_queue_paused("default", True)
    (id,) = await queued(store, delay_us=3_600_000_000)
    _, found = await why(store, 1, public_id("job", id))
    assert [reason.cause for reason in found] == [Cause.DELAYED, Cause.QUEUE_PAUSED, Cause.NO_WORKER]


async def test_a_worker_that_is_not_heard_of_is_none_that_would_take_it(database_url: str) -> None:
    """It was killed, and nobody has ended it yet."""
    timed = await open_timed(database_url)
    await serving(timed.store)
    (id,) = await queued(timed.store)
    assert (await why(timed.store, 1, public_id("job", id)))[1][0].cause is Cause.DUE
    await timed.advance(SILENT_US + 1)
    _, found = await why(timed.store, 1, public_id("job", id))
    assert found[0].cause is Cause.NO_WORKER
    assert "no worker serves its queue 'default'; the last that did was heard of at 20" in found[0].says
    await timed.close()


async def test_a_dead_letter_is_redriven_and_other_jobs_are_retried(store: Store) -> None:
    (id,) = await queued(store)
    await moved(store, JOB, id, "dead_letter")
    _, found = await why(store, 1, public_id("job", id))
    assert found[0].todo == f"keptwork dead-letters redrive {public_id('job', id)}"


async def test_when_it_clears_is_exact(store: Store) -> None:
    (id,) = await queued(store, delay_us=3_600_000_000)
    row, found = await why(store, 1, public_id("job", id))
    assert found[0].clears_at == row["run_at"]


async def test_a_breaker_that_has_cooled_down_is_not_said_to_cool_down(database_url: str) -> None:
    """It was said to clear two hours ago."""
    timed = await open_timed(database_url)
    id = await breaker(timed.store)
    await timed.advance(7_200_000_000)
    _, found = await why(timed.store, 1, public_id("job", id))
    assert found[0].says.endswith("it has cooled down, and the next job that needs it tries")
    assert found[0].clears_at is None
    await timed.close()


async def test_what_somebody_woke_is_no_longer_said_to_wait(store: Store) -> None:
    id = await waiting(store, "event go", await store.now() - 1)
    _, found = await why(store, 1, public_id("job", id))
    assert found[0].cause is Cause.DUE

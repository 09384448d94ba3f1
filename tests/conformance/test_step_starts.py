"""Where a job starts, the step it works for starts with it: in the same write, by one move, with one event."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from keptwork.audit.verify import verify
from keptwork.core.lifecycles import JOB, LIFECYCLES, RUN, WORKSTREAM, Lifecycle
from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.store import Writer
from tests.conformance.by_hand import Hand, hand_on
from tests.conformance.promises import keeps
from tests.conformance.stage import LEASE, claim, entity, log, moved, worker


class Case(NamedTuple):
    """A step in a state, and what its job's start does to it."""

    kind: str
    way: tuple[str, ...]
    move: str | None
    state: str


FAILED = ("dependencies_met", "failure")
CASES = {
    "a run's step that waits": Case("run-step", (), "claim", "RUNNING"),
    "a run's step that runs": Case("run-step", ("claim",), "reclaim", "RUNNING"),
    "a run's step that ended": Case("run-step", ("claim", "succeed"), None, "SUCCEEDED"),
    "a workstream's step that waits": Case("workstream-step", (), "dependencies_met", "S_RUNNING"),
    "a workstream's step that is tried again": Case(
        "workstream-step", (*FAILED, "retry_eligible"), "retry_attempt", "S_RUNNING"
    ),
    "a workstream's step that runs": Case("workstream-step", ("dependencies_met",), None, "S_RUNNING"),
    "a workstream's step that failed": Case("workstream-step", FAILED, None, "S_FAILED"),
}


async def step_of(store: Store, case: Case) -> int:
    flow = await store.create(RUN if case.kind == "run-step" else WORKSTREAM)
    lifecycle = LIFECYCLES[case.kind]
    id = await store.create(lifecycle, flow_id=flow, name="one", max_retries=3, correlation_id="c-1", trace_id="t-1")
    for trigger in case.way:
        await moved(store, lifecycle, id, trigger)
    return id


async def job_for(store: Store, step: int) -> int:
    (id,) = await store.enqueue([NewJob("kind", step_id=step, tree_id=1)])
    return id


async def by_claim_and_start(store: Store, hand: Hand, step: int) -> int:
    id = await job_for(store, step)
    assert [job.id for job in await claim(store, await worker(store), 1, start=True)] == [id]
    return id


async def by_claim_then_start(store: Store, hand: Hand, step: int) -> int:
    id = await job_for(store, step)
    assert [job.id for job in await claim(store, await worker(store), 1)] == [id]
    await moved(store, JOB, id, "start", by="holder")
    return id


async def by_hand(store: Store, hand: Hand, step: int) -> int:
    id = await job_for(store, step)
    await hand.run(f"UPDATE jobs SET seq = seq + 1, move = 'claim', state = 'assigned' WHERE id = {id}")
    start = "seq = seq + 1, move = 'start', state = 'running', attempts = attempts + 1"
    await hand.run(f"UPDATE jobs SET {start} WHERE id = {id}")
    return id


async def at_birth(store: Store, hand: Hand, step: int) -> int:
    made = await store.enqueue_started(NewJob("kind", step_id=step, tree_id=1), await worker(store), LEASE, 7)
    assert made.state == "running"
    return made.id


WAYS = [by_claim_and_start, by_claim_then_start, by_hand, at_birth]


async def wrong(store: Store, case: Case, step: int, job: int, before: int) -> list[str]:
    """What is not as it should be of the step, once its job has started."""
    lifecycle: Lifecycle = LIFECYCLES[case.kind]
    row, started = await entity(store, lifecycle, step), await entity(store, JOB, job)
    new = [event for event in await log(store, entity_id=step) if event.seq > before]
    expected: list[Any] = []
    if case.move:
        of = (lifecycle.move(case.move).event, case.move, started["actor"], "c-1", "t-1", case.state)
        expected = [(before + 1, *of)]
    found = [(e.seq, e.type, e.trigger, e.actor, e.correlation_id, e.trace_id, e.to_state) for e in new]
    faults = [] if found == expected else [f"events {found} instead of {expected}"]
    is_ = (row["state"], row["job_id"], row["attempts"], row["seq"])
    should = (case.state, job, 1, before + len(expected))
    faults += [] if is_ == should else [f"{is_} instead of {should}"]
    return faults + [str(problem) for problem in (await verify(store)).problems]


async def tried(store: Store, hand: Hand, case: Case, way: Any) -> list[str]:
    step = await step_of(store, case)
    before = (await entity(store, LIFECYCLES[case.kind], step))["seq"]
    return await wrong(store, case, step, await way(store, hand, step), before)


@keeps(Writer.enqueue_started, "A flow step that the job runs starts with it")
@pytest.mark.parametrize("way", WAYS)
async def test_a_step_starts_with_its_job_by_one_move_with_one_event(store: Store, hand: Hand, way: Any) -> None:
    found = {name: await tried(store, hand, case, way) for name, case in CASES.items()}
    assert {name: faults for name, faults in found.items() if faults} == {}


@keeps(Writer.enqueue_started, "If the job cannot start, it is returned queued")
async def test_a_job_that_works_for_a_crew_goes_through_the_queue(store: Store) -> None:
    owner = await worker(store)
    made = await store.enqueue_started(NewJob("kind", crew_id=2, tree_id=3), owner, LEASE, 7)
    assert (made.state, made.owner, made.crew_id, made.tree_id) == ("queued", None, 2, 3)
    (job,) = await claim(store, owner, 1, start=True)
    assert job.id == made.id


async def test_a_start_that_is_undone_leaves_the_step_alone(store: Store) -> None:
    step = await step_of(store, CASES["a run's step that waits"])
    await job_for(store, step)

    async def fail() -> None:
        async with store.transaction() as transaction:
            await claim(transaction, await worker(transaction), 1, start=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    row = await entity(store, LIFECYCLES["run-step"], step)
    assert (row["state"], row["seq"], row["attempts"], row["job_id"]) == ("PENDING", 1, 0, None)


async def test_a_second_attempt_of_a_job_shows_as_a_move_of_the_step_where_there_is_one(store: Store) -> None:
    step = await step_of(store, CASES["a run's step that waits"])
    await job_for(store, step)
    for _ in range(2):
        (job,) = await claim(store, await worker(store), 1, start=True)
        await moved(store, JOB, job.id, "retry", by="holder", values={"error": "e", "delay_us": 0})
    row = await entity(store, LIFECYCLES["run-step"], step)
    assert (row["state"], row["attempts"]) == ("RUNNING", 2)
    assert [event.trigger for event in await log(store, entity_id=step)] == ["create", "claim", "reclaim"]


# --- without the trigger


DROP = {"sqlite": "DROP TRIGGER jobs_start_step", "postgres": "DROP TRIGGER jobs_start_step ON jobs"}


@pytest.fixture(params=["sqlite", "postgres"])
def own_url(request: pytest.FixtureRequest) -> str:
    """A database of this test's own, for its schema is changed."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_copy"))


@pytest.fixture
async def without_trigger(own_url: str) -> Any:
    """A store whose database has lost the trigger, and a hand on it."""
    opened, hand = await open_store(own_url), await hand_on(own_url)
    await hand.run(DROP["sqlite" if own_url.startswith("sqlite") else "postgres"])
    yield opened, hand
    await hand.close()
    await opened.close()


async def test_the_tests_above_notice_a_database_without_the_trigger(without_trigger: tuple[Store, Hand]) -> None:
    store, hand = without_trigger
    for case in CASES.values():
        for way in WAYS:
            assert await tried(store, hand, case, way) != []


async def test_the_audit_says_that_the_trigger_is_missing(without_trigger: tuple[Store, Hand]) -> None:
    store, _ = without_trigger
    assert [fault for fault in await store.faults() if "jobs_start_step" in fault] != []
    assert any("jobs_start_step" in str(problem) for problem in (await verify(store)).problems)

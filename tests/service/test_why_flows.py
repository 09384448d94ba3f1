"""Why a flow or a step is not moving: each cause there is, made for real on both stores."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

import pytest

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.diagnostics import diagnose
from keptwork.diagnostics.why_flows import MOST_STEPS, FlowCause
from keptwork.diagnostics.why_jobs import Cause
from keptwork.errors import NotFound
from keptwork.flows import commands as flows
from keptwork.flows.transaction import Actor
from keptwork.store import Store
from tests.conformance.stage import moved, worker
from tests.service.flow_driver import Driver, flow, step

FAILS = {"max_retries": 0}


async def started(store: Store, *steps: dict[str, object], **more: object) -> flows.FlowRef:
    return await flows.start(store, flow(*steps, **more))


async def step_id(store: Store, ref: flows.FlowRef, name: str) -> str:
    (row,) = await store.steps(ref.id, names=[name])
    return public_id(ref.kind.step.name, row["id"])


async def failing(store: Store, **more: object) -> flows.FlowRef:
    ref, driver = await started(store, step("a"), step("b", "a"), **more), Driver(store)
    await driver.settle(await driver.start(), lambda _: True)
    return ref


# --- one scene for each cause; each returns the id to ask about


async def left(store: Store) -> str:
    """By `keptwork run`, whose queue nobody else serves."""
    return (await flows.start(store, flow(step("a")), queue="run-left")).public_id


async def ended(store: Store) -> str:
    ref = await started(store, step("a"))
    await flows.cancel(store, ref, Actor("ann", "enough"))
    return ref.public_id


async def held(store: Store) -> str:
    ref = await started(store, step("a"))
    await flows.hold(store, ref, Actor("ann"))
    return ref.public_id


async def retry(store: Store) -> str:
    return (await failing(store, max_retries=1)).public_id


async def failed(store: Store) -> str:
    return (await failing(store)).public_id


async def asked(store: Store) -> str:
    question = {"question": "Ship it?", "by": "ops", "expires": "1h"}
    return (await started(store, step("sign", approval=question))).public_id


async def dependency(store: Store) -> str:
    ref = await started(store, step("a"), step("b", "a"), step("c", "b"))
    return await step_id(store, ref, "c")


async def subflow(store: Store) -> str:
    inner = flow(step("ask", approval={"question": "Go on?"}))
    ref = await flows.start(store, flow(step("sub", flow="inner")), library={"inner": inner})
    return ref.public_id


async def of_a_step(store: Store) -> str:
    ref = await started(store, step("a"))
    (job,) = await store.unfinished_jobs(ref.id)
    return public_id("job", job.id)


async def damage(store: Store) -> str:
    """Whoever applies a move of a job without the service does not tell its flow."""
    ref = await started(store, step("a"))
    (job,) = await store.unfinished_jobs(ref.id)
    await moved(store, JOB, job.id, "cancel")
    return ref.public_id


async def paused(store: Store) -> str:
    ref = await started(store, step("a"))
    await store.set_queue_paused("default", True)
    return ref.public_id


async def backing_off(store: Store) -> str:
    ref = await started(store, step("a", for_each={"items": [1], "limit": 1}, retries=3))
    return await step_id(store, ref, "a")


async def beyond_the_limit(store: Store) -> str:
    ref = await started(store, step("a", for_each={"items": [1, 2, 3], "limit": 2}))
    return f"{ref.public_id}/a[2]"


async def elsewhere(store: Store) -> str:
    return (await started(store, step("a", queue="far off"))).public_id


async def calling(store: Store) -> str:
    return (await started(store, {"id": "a", "call": "shop:ship"})).public_id


async def crewed(store: Store) -> str:
    return (await started(store, step("c", crew={"task": "dig", "workers": 3, "call": "shop:dig"}))).public_id


async def under_way(store: Store, lease_us: int = 60_000_000) -> str:
    """The job of a step has attempts to spare, of which nobody is told."""
    ref = await flows.start(store, flow(step("a")), queue="run-here")
    who = await worker(store)
    await store.beat(who)
    assert await store.claim(who, ["run-here"], 1, lease_us, claim_id=1, start=True)
    return ref.public_id


async def killed(store: Store) -> str:
    """In the middle of a step, and with it the only worker that serves its queue."""
    return await under_way(store, lease_us=1)


Scene = Callable[[Store], Awaitable[str]]

SCENES: list[tuple[StrEnum, Scene, str, str]] = [
    (FlowCause.ENDED, ended, "it has ended as S_ABANDONED (enough)", "keptwork workstreams fork ws_"),
    (FlowCause.HELD, held, "it has been held since", "keptwork workstreams release ws_"),
    (FlowCause.RETRY, retry, "it failed (a: on purpose), and is tried again", ""),
    (FlowCause.FAILED, failed, "it failed (a: on purpose), and waits for an operator", "keptwork steps skip step_"),
    (
        FlowCause.ASKED,
        asked,
        "step sign: it waits for somebody (ops) to approve: Ship it?",
        "keptwork approvals approve apr_",
    ),
    (FlowCause.DEPENDENCY, dependency, "it waits for b (S_PENDING)", "keptwork why step_"),
    (FlowCause.ASKED, subflow, "it waits for somebody (anyone) to approve: Go on?", "keptwork approvals approve apr_"),
    (
        FlowCause.ROOM,
        beyond_the_limit,
        "it waits for room: 2 elements of a are at work, and its limit is 2",
        "keptwork why step_",
    ),
    (FlowCause.DAMAGE, damage, "waits for nothing, and has no job", "keptwork doctor --fix"),
    (Cause.QUEUE_PAUSED, paused, "its queue 'default' has been paused since", "keptwork queues resume default"),
    (Cause.NO_WORKER, backing_off, "a[0]: its job job_", "keptwork work"),
    (Cause.NO_WORKER, elsewhere, "no worker serves its queue 'far off'", "keptwork work --queues 'far off'"),
    (Cause.NO_WORKER, calling, "no worker serves its queue", "keptwork work, where what it calls can be imported"),
    (Cause.NO_WORKER, crewed, "0 of 3 shares are done; job_", "keptwork work"),
    (Cause.NO_WORKER, left, "no worker serves its queue 'run-left'", "keptwork run --resume ws_"),
    (Cause.LEASE_OVER, killed, "is over, and no worker has taken the job back yet", "keptwork run --resume ws_"),
    (Cause.RUNNING, under_way, "is at it, in attempt 1; its lease", ""),
]
CLEARS = {FlowCause.RETRY, FlowCause.FAILED}


@pytest.mark.parametrize(("cause", "scene", "says", "todo"), SCENES, ids=[scene.__name__ for _, scene, _, _ in SCENES])
async def test_it_names_the_cause_at_the_bottom_and_what_to_do(
    store: Store, cause: StrEnum, scene: Scene, says: str, todo: str
) -> None:
    told = await diagnose.explained(store, 1, await scene(store))
    assert told.reasons[0].cause is cause, told.reasons
    assert says in told.reasons[0].says
    assert todo in (told.reasons[0].todo or "")
    if cause in CLEARS:
        assert told.reasons[0].clears_at is not None


def test_every_cause_of_flows_has_its_scene() -> None:
    covered = {cause for cause, *_ in SCENES} | {FlowCause.STEP, FlowCause.SUBFLOW}
    assert set(FlowCause) <= covered


async def test_a_flow_inside_is_named_on_the_way_down(store: Store) -> None:
    told = await diagnose.explained(store, 1, await subflow(store))
    assert told.reasons[0].says.startswith("step sub: it is the flow ws_")


async def test_what_is_at_the_bottom_of_a_dependency_is_told_too(store: Store) -> None:
    told = await diagnose.explained(store, 1, await dependency(store))
    assert "step a: its job job_" in told.reasons[1].says
    assert told.reasons[1].cause is Cause.NO_WORKER


async def test_a_job_that_carries_out_a_step_says_which(store: Store) -> None:
    told = await diagnose.explained(store, 1, await of_a_step(store))
    assert told.reasons[-1].cause is FlowCause.STEP
    assert "it carries out the step a of ws_" in told.reasons[-1].says


async def test_a_question_that_expires_says_so_and_not_that_it_clears(store: Store) -> None:
    told = await diagnose.explained(store, 1, await asked(store))
    assert told.reasons[0].clears_at is not None
    assert told.reasons[0].then == "without an answer it expires, which is a no,"


async def test_a_foreign_or_unknown_flow_is_not_found(store: Store) -> None:
    other = await store.add_tenant("other")
    id = await held(store)
    with pytest.raises(Exception, match="No flow"):
        await diagnose.explained(store, other, id)
    with pytest.raises(NotFound, match="No flow 'ws_mistyped'"):
        await diagnose.explained(store, 1, "ws_mistyped")


async def test_a_step_is_found_by_its_flow_and_its_name(store: Store) -> None:
    ref = await started(store, step("a"), step("b", "a"))
    by_name = await diagnose.explained(store, 1, f"{ref.public_id}/b")
    assert by_name == await diagnose.explained(store, 1, await step_id(store, ref, "b"))
    with pytest.raises(NotFound, match="keptwork steps list ws_"):
        await diagnose.explained(store, 1, f"{ref.public_id}/none")


async def test_what_a_command_left_behind_is_gone_on_with_by_that_command(store: Store) -> None:
    """No worker serves the queue that it had for itself, and none that is started would know of it."""
    inner = flow(step("x"))
    ref = await flows.start(store, flow(step("sub", flow="inner")), queue="run-0", library={"inner": inner})
    (job,) = await store.unfinished_jobs(ref.id)
    for id in (ref.public_id, public_id(JOB.name, job.id)):
        told = await diagnose.explained(store, 1, id)
        assert (told.reasons[0].cause, told.reasons[0].todo) == (
            Cause.NO_WORKER,
            f"keptwork run --resume {ref.public_id}",
        )


async def test_a_flow_of_thousands_of_steps_is_looked_at_in_time_that_grows_no_faster_than_it(store: Store) -> None:
    """For each step all of them were sorted anew: of 4,000 it took most of a minute, and nobody else was served."""
    ref = await started(store, *(step(f"s{number}") for number in range(4_000)))
    begun = time.perf_counter()
    told = await diagnose.explained(store, 1, ref.public_id)
    assert len(told.reasons) == MOST_STEPS
    assert time.perf_counter() - begun < 5

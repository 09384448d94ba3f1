"""The examination itself: every kind of harm it is there to find, done on purpose, is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from keptwork.core.lifecycles import JOB, WORKER, decide, insist
from keptwork.store import NewJob, Store
from tests.acceptance.effects import Outlet, Sink
from tests.acceptance.examination import Findings, examine

PID = 4711


@pytest.fixture
def sink() -> Iterator[Sink]:
    with closing(Sink()) as sink:
        yield sink


async def one_job_done(store: Store, sink: Sink, result: str, steps: tuple[str, ...] = ("first", "second")) -> Findings:
    """A job that was claimed once and succeeded with this result, having delivered these steps."""
    (id,) = await store.enqueue([NewJob("two_steps")])
    worker = await store.create(WORKER, name="one", incarnation="1", workspace_id="test", pid=PID)
    (job,) = await store.claim(worker, ["default"], 1, 60_000_000, claim_id=1, start=True)
    for step in steps:
        sink.take({"key": f"{job.public_id}:{step}", "job": 0, "step": step, "token": 0, "pid": PID})
    change = insist(decide(JOB, job, "succeed", token=job.token, actor=f"w:{worker}", values={"result": result}))
    assert await store.apply([change]) == []
    return await examine(store, [id], sink, {})


RIGHT = f'{{"token": 0, "pid": {PID}}}'


async def test_an_honest_job_is_found_faultless(store: Store, sink: Sink) -> None:
    found = await one_job_done(store, sink, RIGHT)
    assert (found.lost, found.doubled, found.overwritten, found.backward, found.unexplained) == ([], [], [], [], [])
    assert (found.events, found.transitions, found.job_events) == (5, 5, 4)


async def test_a_job_that_never_ran_is_lost(store: Store, sink: Sink) -> None:
    (id,) = await store.enqueue([NewJob("two_steps")])
    found = await examine(store, [id, id + 1], sink, {})
    assert found.lost == ["job 0 is queued", "job 1 is gone"]


async def test_an_effect_under_a_second_key_is_doubled(store: Store, sink: Sink) -> None:
    sink.take({"key": "another", "job": 0, "step": "first", "token": 1, "pid": PID})
    assert (await one_job_done(store, sink, RIGHT)).doubled == ["job 0 has 2 effects in step first"]


async def test_a_claim_that_was_carried_out_twice_is_doubled(store: Store, sink: Sink) -> None:
    found = await one_job_done(store, sink, RIGHT, steps=("first", "first", "second"))
    assert found.doubled == ["job 0 ran step first 2 times under 0"]


async def test_a_missing_effect_and_a_result_of_another_claim_are_noticed(store: Store, sink: Sink) -> None:
    found = await one_job_done(store, sink, f'{{"token": 7, "pid": {PID}}}', steps=("first",))
    assert len(found.overwritten) == 2


def test_the_sink_lets_a_later_token_take_over_and_refuses_an_earlier_one(sink: Sink) -> None:
    outlet = Outlet(sink.port)
    answers = [outlet.deliver("job:step", 0, "step", token) for token in (1, 1, 0, 2, 1)]
    outlet.close()
    assert answers == [True, True, False, True, False]
    assert [effect.token for effect in sink.kept.values()] == [2]

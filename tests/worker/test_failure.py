"""What an exception group means for its job: the same as its members would in sequential code."""

from __future__ import annotations

import asyncio

import pytest

from keptwork import Keptwork, PermanentError, TransientError, ValidationError
from keptwork.context import Context
from keptwork.jobs.outcome import LONGEST_TEXT, Raised, described
from keptwork.workers.breaker_check import verdict
from tests.conformance.stage import log
from tests.process import jobs
from tests.worker.scene import row, state, triggers
from tests.worker.test_settlement import LAST, settled


def asks(error: Exception, delay_us: int) -> Exception:
    error.delay_us = delay_us  # type: ignore[attr-defined]  # read when the job is settled
    return error


def group(*members: BaseException) -> BaseException:
    return BaseExceptionGroup("unhandled errors in a TaskGroup", members)


@pytest.mark.parametrize(
    ("error", "trigger"),
    [
        (group(ValueError("a")), "retry"),
        (group(ValueError("a"), TransientError("b")), "retry"),
        (group(PermanentError("a")), "fail"),
        (group(ValueError("a"), PermanentError("b")), "fail"),
        (group(ValueError("a"), group(group(PermanentError("b")))), "fail"),
        (group(ValidationError("a")), "fail"),
        (group(ValueError("a"), group(ValidationError("b"))), "fail"),
        (group(KeyboardInterrupt("a"), PermanentError("b")), "fail"),
        (ValidationError("a"), "dead_letter"),
    ],
)
def test_a_group_is_permanent_when_one_of_its_members_is(error: BaseException, trigger: str) -> None:
    assert settled(Raised(error)).move.trigger == trigger


def test_a_group_waits_for_the_longest_delay_that_a_member_asks_for() -> None:
    nested = group(asks(ValueError("a"), 3_000_000), group(asks(ValueError("b"), 7_000_000)), ValueError("c"))
    assert settled(Raised(nested)).values["delay_us"] == 7_000_000
    assert settled(Raised(asks(group(ValueError("a")), 2))).values["delay_us"] == 2  # type: ignore[arg-type]


def test_a_group_of_time_outs_alone_is_dead_lettered_as_a_time_out() -> None:
    assert settled(Raised(group(TimeoutError(), group(TimeoutError()))), LAST).reason == "timeout"
    assert settled(Raised(group(TimeoutError(), ValueError())), LAST).reason == "exhausted_retries"


def test_the_error_of_a_group_holds_the_messages_of_all_members() -> None:
    error = group(ValueError("a"), group(KeyError("b"), TransientError("c")))
    assert described(error) == (
        "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): "
        "ValueError: a; KeyError: 'b'; TransientError: c"
    )
    same = group(*[ValueError("a")] * 3)
    assert described(same).endswith("(3 sub-exceptions): ValueError: a (3 times)")


def test_one_long_message_does_not_displace_those_of_the_other_members() -> None:
    text = described(group(ValueError("x" * 50_000), *(ValueError(f"number {n}") for n in range(20))))
    assert len(text) <= LONGEST_TEXT
    assert all(f"number {n}" in text for n in range(20))


def test_groups_nested_thousands_deep_are_still_described() -> None:
    error: BaseException = PermanentError("at the bottom")
    for _ in range(5_000):
        error = group(error)
    assert "at the bottom" in described(error)
    assert settled(Raised(error)).move.trigger == "fail"
    while isinstance(error, BaseExceptionGroup):  # else its destructor recurses
        error = error.exceptions[0]


def test_a_breaker_is_not_blamed_for_errors_of_the_job_in_a_group() -> None:
    assert verdict(Raised(group(PermanentError("a"), ValidationError("b")))) is None
    assert verdict(Raised(group(PermanentError("a"), OSError("b")))) is False


# --- by a worker


async def test_a_permanent_error_inside_a_task_group_is_not_retried(app: Keptwork) -> None:
    async def charge(key: str) -> None:
        raise PermanentError(f"card {key} was declined")

    @app.job(max_attempts=5, backoff="1ms")
    async def pay(ctx: Context) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(charge("a"))

    job = await pay.enqueue()
    await app.work(until_idle=True)
    assert await triggers(app, job) == ["enqueue", "claim", "start", "fail"]
    assert "PermanentError: card a was declined" in (await row(app, job))["error"]


@pytest.mark.acceptance
async def test_a_process_settles_an_exception_group_by_its_members(app: Keptwork) -> None:
    pay = app.job(isolation="process", max_attempts=2)(jobs.fails_together)
    permanent, delayed = await pay.enqueue(permanent=True), await pay.enqueue(permanent=False)
    await app.work(until_idle=True)
    assert await state(app, permanent) == "failed"
    assert await triggers(app, delayed) == ["enqueue", "claim", "start", "retry"]
    waiting = await row(app, delayed)
    assert waiting["run_at"] - waiting["updated_at"] >= 3_000_000_000
    assert (await row(app, permanent))["error"].endswith("ValueError: a; PermanentError: b")


async def test_a_step_of_a_flow_that_fails_in_a_group_is_permanent_when_a_member_is(app: Keptwork) -> None:
    step = {"id": "one", "call": "tests.process.jobs:declined", "retries": 3, "backoff": "1ms"}
    await app.start_flow({"kind": "run", "name": "f", "steps": [step]})
    await app.work(until_idle=True)
    events = await log(await app.open(), entity="job")
    assert [event.trigger for event in events if event.from_state == "running"] == ["fail"]

"""The agent job's `next`: the seed's table, and what it must keep."""

from __future__ import annotations

import copy
import doctest
import sys

import pytest

from keptwork.agents.plan import (
    CAP_MS,
    AgentJob,
    Business,
    Complete,
    Failure,
    Next,
    Outcome,
    Retry,
    RetryConfig,
    Status,
    Success,
    System,
    next,
)
from keptwork.errors import InvalidTransition
from tests.lifecycle.expected import AGENT_NEXT

OUTCOMES: dict[str, Outcome] = {"success": Success(), "failure": Failure(System("timeout"))}
KINDS = [Business("wrong output"), System("timeout")]


def job(**values: object) -> AgentJob:
    return AgentJob(id="agent_1", description="tidy up", **values)  # type: ignore[arg-type]


def described(result: Next | Retry | Complete) -> str:
    if isinstance(result, Complete):
        return f"Complete({type(result.outcome).__name__})"
    return f"{type(result).__name__}({result.state})"


CASES = [
    (state, outcome, retries_left, result)
    for state, outcome, asked, result in AGENT_NEXT
    for retries_left in ([True, False] if asked is None else [asked])
]


@pytest.mark.parametrize(("state", "outcome", "retries_left", "result"), CASES)
def test_the_table_of_the_seed(state, outcome, retries_left, result):
    given = job(state=state, retry_count=2 if retries_left else 3)
    assert described(next(given, OUTCOMES[outcome])) == result


def test_the_whole_way_of_a_good_job():
    given, seen = job(), []
    while True:
        result = next(given, Success())
        given = result.job
        seen.append((described(result), given.status.value))
        if isinstance(result, Complete):
            break
    assert seen == [
        ("Next(DEFINE_AGENT)", "InProgress"),
        ("Next(PROCESS)", "InProgress"),
        ("Next(END)", "InProgress"),
        ("Complete(Success)", "Completed"),
    ]
    assert given.state == "COMPLETED"
    assert given.state_history == ("INIT", "DEFINE_AGENT", "PROCESS", "END")


def test_a_new_job_is_pending():
    assert (job().status, job().state, job().state_history) == (Status.PENDING, "INIT", ())
    assert job().retry_config == RetryConfig(max_retries=3, base_delay_ms=1000)


def test_the_job_that_is_given_is_left_as_it_is():
    given = job(state="PROCESS")
    before = copy.deepcopy(given)
    first, second = (next(given, Failure(System("timeout")), now=9) for _ in range(2))
    assert given == before
    assert first == second
    assert (first.job.retry_count, first.job.updated_at) == (1, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_both_kinds_of_failure_are_retried_and_handed_back(kind):
    result = next(job(state="PROCESS"), Failure(kind))
    assert isinstance(result, Retry)
    assert result.reason == kind


@pytest.mark.parametrize("kind", KINDS)
def test_three_retries_are_four_calls_and_then_the_end(kind):
    given, calls = job(state="PROCESS"), 1
    while isinstance(result := next(given, Failure(kind)), Retry):
        given, calls = result.job, calls + 1
    assert isinstance(result, Complete)
    assert result.outcome == Failure(kind)
    assert (calls, result.job.retry_count) == (4, 3)
    assert (result.job.state, result.job.status) == ("FAILED", Status.FAILED)
    assert result.job.state_history == ("PROCESS",) * 4


def test_no_retries_allowed_means_one_call():
    given = job(state="PROCESS", retry_config=RetryConfig(max_retries=0))
    assert isinstance(next(given, Failure(System("timeout"))), Complete)


def test_the_retry_count_is_kept_from_state_to_state():
    retried = next(job(state="PROCESS"), Failure(System("timeout"))).job
    ended = next(next(retried, Success()).job, Success()).job
    assert (ended.state, ended.retry_count) == ("COMPLETED", 1)


def test_what_the_job_carries_comes_along():
    given = job(state="PROCESS", agent={"skill": "testing"}, llm_response="done", created_at=3, updated_at=4)
    moved = next(given, Success()).job
    assert (moved.id, moved.agent, moved.llm_response) == ("agent_1", {"skill": "testing"}, "done")
    assert (moved.created_at, moved.updated_at) == (3, 4)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
@pytest.mark.parametrize("outcome", OUTCOMES.values())
def test_an_ended_job_has_no_outcomes(state, outcome):
    with pytest.raises(InvalidTransition, match="the state is final"):
        next(job(state=state), outcome)


@pytest.mark.parametrize(("attempt", "delay"), [(1, 1000), (2, 2000), (3, 4000), (4, 8000)])
def test_the_delays_of_the_seed(attempt, delay):
    assert RetryConfig().delay_ms(attempt) == delay


def test_a_provider_may_ask_for_more_time_but_not_for_less():
    assert RetryConfig().delay_ms(2, retry_after_ms=5000) == 5000
    assert RetryConfig().delay_ms(2, retry_after_ms=500) == 2000


def test_no_delay_passes_the_cap():
    assert RetryConfig().delay_ms(10**9) == CAP_MS
    assert RetryConfig().delay_ms(1, retry_after_ms=10**9) == CAP_MS
    assert RetryConfig().delay_ms(9, cap_ms=60_000) == 60_000
    assert RetryConfig(base_delay_ms=0).delay_ms(5) == 0


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(sys.modules["keptwork.agents.plan"]) == (0, 2)

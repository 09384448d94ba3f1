"""What a handler said decides the move; every outcome, and the bounds of the backoff."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.core.lifecycles import Change, Right
from keptwork.job import JobType
from keptwork.jobs.outcome import (
    LARGEST_IN_ROW,
    LARGEST_RESULT,
    LONGEST_TEXT,
    Raised,
    Release,
    Suspend,
    backoff_us,
    due_soon,
    settle,
)
from keptwork.outcomes import Cancel, PermanentError, Snooze, TransientError, ValidationError
from keptwork.store import Blob, Job
from keptwork.store.contract.checkpoints_blobs import RESULT_BLOB

JOB = Job(
    id=7,
    tenant_id=1,
    state="running",
    seq=3,
    epoch=2,
    queue="default",
    kind="dig",
    payload="{}",
    priority=0,
    run_at=0,
    attempts=1,
    max_attempts=3,
    on_exhausted="dead_letter",
    owner=5,
    lease_until=60_000_000,
    held_by=None,
    correlation_id=None,
    trace_id=None,
)
LAST = replace(JOB, attempts=3)
LAST_FAILS = replace(LAST, on_exhausted="fail")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def dig(ctx: object) -> None: ...


KIND = JobType.of(dig, backoff="1s", backoff_cap="8s")


def settled(said: Any, job: Job = JOB, chance: float = 0.5) -> Change:
    return settle(job, KIND, said, lambda: chance, "w:5")


def test_what_is_put_back_for_less_than_a_poll_is_looked_for_when_it_is_due() -> None:
    now = 1_000_000_000
    waiting = Suspend("sleep", now + 120_000)
    said = [Snooze("20ms"), Snooze("40ms"), Snooze("1ms"), waiting, Snooze("990ms"), Snooze("3s"), Release(), "done"]
    assert due_soon([settled(one) for one in said], now, within=1.0) == {0.05, 0.15}
    assert due_soon([settled(Suspend("event"))], now, within=1.0) == set()


def test_a_result_is_kept_in_its_row_up_to_the_limit_and_apart_from_there_on() -> None:
    fits, large = "x" * (LARGEST_IN_ROW - 2), "x" * (LARGEST_IN_ROW - 1)
    assert settled(fits).values == {"result": json.dumps(fits)}
    blob = Blob.of(json.dumps(large).encode())
    assert settled(large).values == {"result": blob.note, RESULT_BLOB: blob}


@pytest.mark.parametrize(
    ("said", "trigger", "values", "reason"),
    [
        ({"size": 3}, "succeed", {"result": '{"size":3}'}, None),
        (None, "succeed", {"result": None}, None),
        (False, "succeed", {"result": "false"}, None),
        ("\ud800\0", "succeed", {"result": '"\\ud800\\u0000"'}, None),
        (Snooze("5m"), "snooze", {"delay_us": 300_000_000}, None),
        (Snooze(), "snooze", {"delay_us": 0}, None),
        (Cancel("asked to"), "cancel", {}, "asked to"),
        (Cancel(), "cancel", {}, None),
        (Cancel("a\0b"), "cancel", {}, "a\ufffdb"),
        (Release(), "release", {"delay_us": 0}, "worker drains"),
    ],
)
def test_what_is_returned_decides_the_move(
    said: object, trigger: str, values: dict[str, Any], reason: str | None
) -> None:
    change = settled(said)
    assert (change.move.trigger, change.values, change.reason) == (trigger, values, reason)
    assert (change.id, change.seq, change.epoch, change.owner, change.right) == (7, 3, 2, 5, Right.HOLDER)
    assert change.actor == "w:5"


@pytest.mark.parametrize(
    "said",
    [object(), float("nan"), {1, 2}, Snooze("soon"), Snooze(-1), Snooze(float("inf")), Snooze(None)],  # type: ignore[arg-type]
)
@pytest.mark.parametrize("job", [JOB, LAST, LAST_FAILS])
def test_what_cannot_be_kept_fails_the_job_at_the_stage_of_output(said: object, job: Job) -> None:
    change = settled(said, job)
    assert change.move.trigger == "fail"
    assert json.loads(change.detail or "") == {"stage": "output"}
    assert change.values["error"].startswith("PermanentError: the handler returned what cannot be kept: ")


def test_a_result_nested_without_end_or_too_large_fails_too() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert settled(endless).move.trigger == settled(deep).move.trigger == "fail"
    assert settled("x" * LARGEST_RESULT).move.trigger == "fail"
    assert settled("x" * (LARGEST_RESULT - 2)).move.trigger == "succeed"


@pytest.mark.parametrize(
    ("error", "job", "trigger", "reason", "stage"),
    [
        (TransientError("busy"), JOB, "retry", "TransientError: busy", "exec"),
        (ZeroDivisionError(), JOB, "retry", "ZeroDivisionError", "exec"),
        (TimeoutError("slow"), JOB, "retry", "TimeoutError: slow", "exec"),
        (Speechless(), JOB, "retry", "Speechless: it cannot say what is wrong", "exec"),
        (TransientError("busy"), LAST, "dead_letter", "exhausted_retries", "exec"),
        (KeyError("x"), LAST, "dead_letter", "exhausted_retries", "exec"),
        (TimeoutError("slow"), LAST, "dead_letter", "timeout", "exec"),
        (TransientError("busy"), LAST_FAILS, "fail", "TransientError: busy", "exec"),
        (TimeoutError("slow"), LAST_FAILS, "fail", "TimeoutError: slow", "exec"),
        (PermanentError("no"), JOB, "fail", "PermanentError: no", "exec"),
        (PermanentError("no"), LAST, "fail", "PermanentError: no", "exec"),
        (ValidationError("bad"), JOB, "dead_letter", "validation_failed", "input"),
        (ValidationError("bad"), LAST_FAILS, "dead_letter", "validation_failed", "input"),
    ],
)
def test_what_is_raised_decides_the_move(error: BaseException, job: Job, trigger: str, reason: str, stage: str) -> None:
    change = settled(Raised(error), job)
    assert (change.move.trigger, change.reason) == (trigger, reason)
    lease = {"last_lease_expires_at": job.lease_until} if trigger == "dead_letter" else {}
    assert json.loads(change.detail or "") == {"stage": stage, **lease}
    assert change.values["error"].startswith(type(error).__name__)


def test_what_cannot_be_done_here_waits_longer_each_time_but_not_for_ever() -> None:
    said = Release("no handler", backs_off=True)
    delays = [settled(said, replace(JOB, epoch=epoch), chance=1.0).values["delay_us"] for epoch in (0, 1, 2, 50)]
    assert delays == [500_000, 1_000_000, 2_000_000, 60_000_000]
    assert settled(said).move.trigger == "release"


def test_the_stage_is_the_one_it_was_raised_at() -> None:
    assert json.loads(settled(Raised(PermanentError("no handler"), "fetch")).detail or "") == {"stage": "fetch"}


def test_an_error_is_kept_as_text_every_database_takes() -> None:
    change = settled(Raised(PermanentError("a\0b\ud800" + "x" * 2 * LONGEST_TEXT)))
    error = change.values["error"]
    assert error.startswith("PermanentError: a\ufffdb?x")
    assert len(error) == LONGEST_TEXT
    assert error.encode()


def test_a_retry_waits_for_its_backoff() -> None:
    assert settled(Raised(TransientError())).values["delay_us"] == 500_000
    assert settled(Raised(TransientError()), replace(JOB, attempts=2)).values["delay_us"] == 1_000_000


@given(
    base=st.integers(0, 10**9),
    cap=st.integers(0, 10**10),
    attempt=st.integers(1, 10_000),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_the_backoff_is_full_jitter_below_a_doubling_bound(base: int, cap: int, attempt: int, chance: float) -> None:
    kind = replace(KIND, backoff_us=base, backoff_cap_us=cap)
    longest = min(base * 2 ** (attempt - 1), cap)
    assert backoff_us(kind, attempt, lambda: 0.0) == 0
    assert 0 <= backoff_us(kind, attempt, lambda: chance) <= longest
    assert abs(backoff_us(kind, attempt, lambda: chance) - longest * chance) <= 1


@pytest.mark.parametrize(
    ("attempt", "longest"), [(0, 500_000), (1, 500_000), (2, 1_000_000), (7, 32_000_000), (8, 60_000_000)]
)
def test_an_unknown_kind_has_the_default_backoff(attempt: int, longest: int) -> None:
    assert backoff_us(None, attempt, lambda: 1.0) == longest

"""Encode the outcome of a handler in its own process as JSON, and decode it in the worker without running anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from keptwork.core.validation import check_name
from keptwork.errors import BadInput
from keptwork.jobs import outcome_failures
from keptwork.jobs.outcome import (
    LARGEST_RESULT,
    LONGEST_TEXT,
    Raised,
    Release,
    Suspend,
    all_of,
    described,
    plain,
    result_text,
)
from keptwork.outcomes import Cancel, PermanentError, Snooze, TransientError, ValidationError
from keptwork.workers.tracebacks import LONGEST, shown, traceback_of

LARGEST_ANSWER = LARGEST_RESULT + 16 * (LONGEST_TEXT + LONGEST)
LATEST_US = 1 << 60
MOST_WAITS = 10_000

# The exception classes that decide how a job is completed. The text names the original error.
_KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind for kind in (ValidationError, PermanentError, TimeoutError, MemoryError, TransientError)
}


def encoded(said: Any) -> bytes:
    """Return the outcome as JSON, in the handler's process. An outcome that JSON cannot hold becomes an error."""
    try:
        return _encoded(said)
    except Exception as error:
        return _raised(Raised(PermanentError(f"the handler returned what cannot be kept: {error}"), "output"))


def decoded(answer: bytes) -> Any:
    """Return the outcome, in the worker, which does not trust the process. An invalid answer becomes a `Raised`."""
    try:
        ((word, value),) = json.loads(answer).items()
        return _READ[word](value)
    except (BadInput, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Raised(TransientError("its process gave an answer that makes no sense"), "output")


def _encoded(said: Any) -> bytes:
    if isinstance(said, Raised):
        return _raised(said)
    if isinstance(said, Suspend):
        return json.dumps({"suspend": [[one.waits_for, one.until] for one in said.waits or (said,)]}).encode()
    if isinstance(said, Release):
        return json.dumps({"release": [said.reason, said.held_by]}).encode()
    if isinstance(said, Snooze):
        delay = said.delay.total_seconds() if isinstance(said.delay, timedelta) else said.delay
        return json.dumps({"snooze": delay}).encode()
    if isinstance(said, Cancel):
        return json.dumps({"cancel": str(said.reason)[:LONGEST_TEXT]}).encode()
    return b'{"returned":%s}' % result_text(said).encode()


def _raised(raised: Raised) -> bytes:
    error = raised.error
    told = [_kind(error), raised.stage, described(error), outcome_failures.delay_us(error), traceback_of(error)]
    return json.dumps({"raised": told}).encode()


def _kind(error: BaseException) -> str:
    """Return the name of the class that completes the job as this error does."""
    if isinstance(error, ValidationError):
        return ValidationError.__name__
    if outcome_failures.is_permanent(error):
        return PermanentError.__name__
    if outcome_failures.is_timeout(error):
        return TimeoutError.__name__
    return MemoryError.__name__ if isinstance(error, MemoryError) else TransientError.__name__


def _read_raised(value: Any) -> Raised:
    kind, stage, text, delay_us, traceback = value
    error = _KINDS[kind]()
    if delay_us is not None:
        if type(delay_us) is not int or not 0 <= delay_us <= LATEST_US:
            raise ValueError("no delay")
        error.delay_us = delay_us  # type: ignore[attr-defined]  # read when the job is settled
    return Raised(error, str(stage), str(text), None if traceback is None else shown(str(traceback)))


def _read_suspend(value: Any) -> Suspend:
    """Return the waits of a job. Each time is one that both databases can store, or None for no limit."""
    waits = [Suspend(plain(str(waits_for)), until) for waits_for, until in value]
    for one in waits:
        if one.until is not None and (type(one.until) is not int or not 0 <= one.until <= LATEST_US):
            raise ValueError("no time")
    return all_of(waits[:MOST_WAITS])


def _read_release(value: Any) -> Release:
    reason, held_by = value
    if held_by is not None:
        check_name("hold", held_by)
    return Release(str(reason), held_by=held_by)


_READ: dict[str, Callable[[Any], Any]] = {
    "returned": lambda value: value,
    "suspend": _read_suspend,
    "release": _read_release,
    "snooze": Snooze,
    "cancel": lambda value: Cancel(str(value)),
    "raised": _read_raised,
}

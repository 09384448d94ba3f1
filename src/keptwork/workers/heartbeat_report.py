"""Count the outcomes of a worker's jobs, and log those that did not simply succeed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from keptwork.core.lifecycles import Change
from keptwork.jobs.outcome import Raised
from keptwork.observability import logs
from keptwork.store import Job
from keptwork.workers.tracebacks import traceback_of

log = logging.getLogger("keptwork")

USUAL = {"succeed", "snooze"}
GIVEN_BACK = "release"


class Doing(NamedTuple):
    """A worker's activity at one moment: jobs in hand, concurrency, outcomes by move, and recent jobs per second.

    `slots_replaced` counts slots that died or were lost to handlers that do not end.
    """

    in_hand: int
    concurrency: int
    outcomes: dict[str, int]
    per_second: float
    slots_replaced: int = 0

    @property
    def settled(self) -> int:
        """The number of completed jobs, without released ones."""
        return sum(count for trigger, count in self.outcomes.items() if trigger != GIVEN_BACK)


class Report:
    """The outcomes that were written."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def note(self, written: Sequence[tuple[Job, Change, Any]], late: Sequence[Change]) -> None:
        """Count and log the outcomes of these jobs, without changes that were too late."""
        done = [one for one in written if one[1] not in late] if late else written
        triggers = [change.move.trigger for _, change, _ in done]
        self.outcomes.update(triggers)
        if not USUAL.issuperset(triggers):
            self._tell(done)

    def _tell(self, written: Sequence[tuple[Job, Change, Any]]) -> None:
        for job, change, said in written:
            who, why = f"{job.public_id} ({job.kind})", change.values.get("error") or change.reason
            extra = {"keptwork": {**logs.about(job), "move": change.move.trigger}}
            failed = partial(_tell_failure, said, extra)
            match change.move.trigger:
                case "retry":
                    seconds = change.values["delay_us"] / 1_000_000
                    attempt = f"{job.attempts} of {job.max_attempts}"
                    failed(logging.INFO, "%s failed in attempt %s, again in %.1f s: %s", who, attempt, seconds, why)
                case "fail":
                    failed(logging.WARNING, "%s failed: %s", who, why)
                case "dead_letter":
                    failed(logging.WARNING, "%s is a dead letter (%s): %s", who, change.reason, why)
                case "cancel":
                    log.info("%s was cancelled: %s", who, why or "its handler said so", extra=extra)
                case "release":
                    log.info("%s was given back: %s", who, why, extra=extra)


def _tell_failure(said: Any, extra: dict[str, Any], level: int, message: str, *arguments: object) -> None:
    """Log a failed attempt with its traceback, which takes time to format and is formatted only if it is logged."""
    if log.isEnabledFor(level):
        logs.tell_traceback(log, level, message, *arguments, extra=extra, traceback=_traceback(said))


def _traceback(said: Any) -> str | None:
    if not isinstance(said, Raised):
        return None
    return said.traceback if said.text is not None else traceback_of(said.error)

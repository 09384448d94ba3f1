"""What a worker does: counted by outcome, and told to the log where a job did not simply succeed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from keptwork import logs
from keptwork.lifecycle import Change
from keptwork.store import Job

log = logging.getLogger("keptwork")

USUAL = {"succeed", "snooze"}
GIVEN_BACK = "release"


class Doing(NamedTuple):
    """A worker at one moment: jobs in hand, how many it may run at a time, what became of those it settled, by move,
    and how many a second it has settled of late."""

    in_hand: int
    concurrency: int
    outcomes: dict[str, int]
    per_second: float

    @property
    def settled(self) -> int:
        """Without those that were given back unfinished."""
        return sum(count for trigger, count in self.outcomes.items() if trigger != GIVEN_BACK)


class Report:
    """Counts what was written."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def note(self, written: Sequence[tuple[Job, Change]], late: Sequence[Change]) -> None:
        """What became of these jobs, but for the changes that came too late."""
        triggers = Counter([change.move.trigger for _, change in written])
        triggers.subtract(change.move.trigger for change in late)
        self.outcomes += triggers
        if not triggers.keys() <= USUAL:
            self._tell([(job, change) for job, change in written if change not in late])

    def _tell(self, written: Sequence[tuple[Job, Change]]) -> None:
        for job, change in written:
            who, why = f"{job.public_id} ({job.kind})", change.values.get("error") or change.reason
            extra = {"keptwork": {**logs.about(job), "move": change.move.trigger}}
            match change.move.trigger:
                case "retry":
                    seconds = change.values["delay_us"] / 1_000_000
                    attempt = f"{job.attempts} of {job.max_attempts}"
                    log.info("%s failed in attempt %s, again in %.1f s: %s", who, attempt, seconds, why, extra=extra)
                case "fail":
                    log.warning("%s failed: %s", who, why, extra=extra)
                case "dead_letter":
                    log.warning("%s is a dead letter (%s): %s", who, change.reason, why, extra=extra)
                case "cancel":
                    log.info("%s was cancelled: %s", who, why or "its handler said so", extra=extra)
                case "release":
                    log.info("%s was given back: %s", who, why, extra=extra)

"""Schedules as the store keeps them: what they enqueue, by which rule, and their progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from keptwork.core.schedule_rules import CatchUp, Rule
from keptwork.store.contract.records import NewJob

SCHEDULER = "scheduler"
"""The actor of what a schedule does."""

_OWN = ("kind", "payload", "queue", "tenant_id")


class Schedule(NamedTuple):
    """A schedule: what it enqueues, by which rule, and its progress. `rules` has all other options of its jobs as JSON.
    `next_at` is the first tick that was not fired, and `last_at` the last tick that was."""

    tenant_id: int
    name: str
    kind: str
    queue: str
    payload: str
    rules: str
    cron: str | None
    every_us: int | None
    tz: str
    catch_up: CatchUp
    declared_by: str
    next_at: int
    last_at: int | None = None
    paused_at: int | None = None
    created_at: int = 0
    updated_at: int = 0

    @classmethod
    def of(cls, name: str, job: NewJob, rule: Rule, catch_up: CatchUp, by: str, next_at: int) -> Schedule:
        """Return a schedule that enqueues this job and has its first tick at `next_at`."""
        usual = NewJob(job.kind)._asdict()
        rules = {field: value for field, value in job._asdict().items() if field not in _OWN and value != usual[field]}
        kept = (job.tenant_id, name, job.kind, job.queue, job.payload, json.dumps(rules))
        return cls(*kept, rule.cron, rule.every_us, rule.tz, catch_up, by, next_at)

    @property
    def rule(self) -> Rule:
        return Rule(self.cron, self.every_us, self.tz)

    @property
    def job(self) -> NewJob:
        """The job that the schedule enqueues, without options that this program does not know."""
        rules = {name: value for name, value in json.loads(self.rules).items() if name in NewJob._fields}
        return NewJob(self.kind, self.payload, self.queue, self.tenant_id)._replace(**rules)


SCHEDULE_COLUMNS = Schedule._fields


class Plan(NamedTuple):
    """The effect of firing a schedule: its jobs, its next tick, and the last tick fired, if any."""

    jobs: list[NewJob]
    next_at: int
    last_at: int | None


Planner = Callable[[Schedule, int], Plan | None]
"""A function that returns the effect of firing a schedule at a time, or None to leave it unchanged. It can be called on
any thread."""


def planned(due: Iterable[Schedule], plan: Planner, now: int, most_jobs: int) -> Iterator[tuple[Schedule, Plan]]:
    """Yield the schedules to fire now with their plans. A schedule whose jobs would exceed the maximum is skipped."""
    jobs = 0
    for schedule in due:
        what = plan(schedule, now)
        if what is not None and jobs + len(what.jobs) <= most_jobs:
            jobs += len(what.jobs)
            yield schedule, what

"""Schedules as they are kept: what is to be enqueued by which rule, and how far it has got."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from keptwork.schedule import CatchUp, Rule
from keptwork.store.records import NewJob

SCHEDULER = "scheduler"
"""Who does what a schedule does."""

_OWN = ("kind", "payload", "queue", "tenant_id")


class Schedule(NamedTuple):
    """A schedule: what it enqueues, by which rule, and how far it has got. `rules` are all other rules of its jobs, as
    JSON; `next_at` is its first tick that was not fired, `last_at` the last one that was."""

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
        """One that enqueues this job, and has its first tick then."""
        usual = NewJob(job.kind)._asdict()
        rules = {field: value for field, value in job._asdict().items() if field not in _OWN and value != usual[field]}
        kept = (job.tenant_id, name, job.kind, job.queue, job.payload, json.dumps(rules))
        return cls(*kept, rule.cron, rule.every_us, rule.tz, catch_up, by, next_at)

    @property
    def rule(self) -> Rule:
        return Rule(self.cron, self.every_us, self.tz)

    @property
    def job(self) -> NewJob:
        """What it enqueues. A rule that only a newer program knows is left out."""
        rules = {name: value for name, value in json.loads(self.rules).items() if name in NewJob._fields}
        return NewJob(self.kind, self.payload, self.queue, self.tenant_id)._replace(**rules)


SCHEDULE_COLUMNS = Schedule._fields


class Plan(NamedTuple):
    """What firing a schedule does: its jobs, its next tick, and the last one it has fired, if it fires any."""

    jobs: list[NewJob]
    next_at: int
    last_at: int | None


Planner = Callable[[Schedule, int], Plan | None]
"""What firing a schedule does at a time; none leaves it as it is. It may be called on any thread."""


def planned(due: Iterable[Schedule], plan: Planner, now: int, most_jobs: int) -> Iterator[tuple[Schedule, Plan]]:
    """Those that are fired now, and how: as many as do not make too many jobs."""
    jobs = 0
    for schedule in due:
        what = plan(schedule, now)
        if what is not None and jobs + len(what.jobs) <= most_jobs:
            jobs += len(what.jobs)
            yield schedule, what

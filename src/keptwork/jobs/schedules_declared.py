"""The schedules that an application declares: collected while its modules load, then stored by its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

from keptwork.core.durations import Span
from keptwork.core.schedule_rules import CatchUp, Rule
from keptwork.errors import BadInput
from keptwork.job import JobType
from keptwork.jobs import schedules
from keptwork.jobs.schedules import Declaration
from keptwork.store import NewJob, Store


class How(TypedDict, total=False):
    """The options of a schedule, besides its job."""

    cron: str | None
    every: Span | None
    tz: str
    name: str | None
    arguments: Mapping[str, Any] | None
    catch_up: CatchUp


class Declared(NamedTuple):
    """A schedule and the job that it enqueues."""

    schedule: Declaration
    kind: JobType
    arguments: Mapping[str, Any]


class DeclaredSchedules:
    """The schedules of one application, by name."""

    def __init__(self) -> None:
        self._declared: dict[str, Declared] = {}

    def add(self, kind: JobType, how: How) -> None:
        """Add a schedule. Raise `BadInput` here, where it is declared, if it is invalid."""
        name = how.get("name") or kind.name
        arguments = how.get("arguments") or {}
        if name in self._declared:
            raise BadInput(what=f"there are two schedules called {name!r}; give one of them a name=")
        try:
            rule = Rule.of(how.get("cron"), how.get("every"), how.get("tz", "UTC"))
            declaration = Declaration.of(name, rule, how.get("catch_up", "latest"))
            kind.payload(arguments)
            kind.insist_not_unique("schedules")
        except BadInput as refusal:
            raise BadInput(what=f"schedule {name}: {refusal}") from None
        self._declared[name] = Declared(declaration, kind, arguments)

    async def keep(self, store: Store, new_job: Callable[[JobType, Mapping[str, Any]], NewJob]) -> None:
        """Store the schedules in the database."""
        for declared in self._declared.values():
            job = new_job(declared.kind, declared.arguments)
            await schedules.put(store, declared.schedule, job, schedules.DECLARED)

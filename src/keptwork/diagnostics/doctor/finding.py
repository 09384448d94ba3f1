"""Findings of the doctor, and the checks that find and repair them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.diagnostics.doctor.flow_facts import Chart, Limits
from keptwork.flows.transaction import Row, Scene
from keptwork.store import Store
from keptwork.store.contract.store import Reader

DOCTOR = "doctor"
"""Actor of the doctor's moves in the log."""

MOST_SHOWN = 1_000
"""Maximum number of entities per check."""


class Finding(NamedTuple):
    """An inconsistency of an entity: what is wrong, since when, and why it matters.

    `fix` describes the doctor's repair by declared moves. If no move can repair it, `todo` is the command for the
    operator.
    """

    check: str
    entity: str
    id: int
    says: str
    since: int | None = None
    matters: str = ""
    fix: str | None = None
    todo: str | None = None
    tenant_id: int = 0
    about: str = ""

    @property
    def public_id(self) -> str:
        return public_id(self.entity, self.id) if self.id else self.about

    @property
    def place(self) -> tuple[str, str, int, str]:
        """The identity of a finding."""
        return self.check, self.entity, self.id, self.about


class FlowCheck(NamedTuple):
    """A check of flows: finds damage on a chart, and repairs it under the flow's lock."""

    name: str
    look: Callable[[Chart], Iterable[Finding]]
    mend: Callable[[Scene, Chart, Finding], Awaitable[None]] | None = None


class StoreCheck(NamedTuple):
    """A check of entities that belong to no flow."""

    name: str
    look: Callable[[Reader, Limits], Awaitable[list[Finding]]]
    mend: Callable[[Store, Finding], Awaitable[None]] | None = None


def step_of(scene: Scene, finding: Finding) -> Row:
    """Return the step that a finding is about."""
    return next(row for row in scene.steps.values() if row["id"] == finding.id)


def as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding in the form that commands print."""
    return {
        "check": finding.check,
        "entity": finding.entity,
        "id": finding.public_id,
        "says": finding.says,
        "since": None if finding.since is None else rfc3339(finding.since),
        "matters": finding.matters,
        "fix": finding.fix,
        "todo": finding.todo,
    }

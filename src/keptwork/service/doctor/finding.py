"""What the doctor can find: one thing that is wrong, in words, and what would mend it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from keptwork.moments import rfc3339
from keptwork.service.doctor.chart import Chart, Limits
from keptwork.service.entities import public_id
from keptwork.service.flow_scene import Row, Scene
from keptwork.store import Store
from keptwork.store.protocol import Reader

DOCTOR = "doctor"
"""Who did it, as the log names the doctor."""

MOST_SHOWN = 1_000
"""So many of one kind are looked at."""


class Finding(NamedTuple):
    """Something that is wrong with an entity: what, since when, and why it matters. `fix` says what the doctor will do
    about it by moves that are declared; where none can mend it, `todo` is what somebody has to run."""

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
        """What tells two findings apart."""
        return self.check, self.entity, self.id, self.about


class FlowCheck(NamedTuple):
    """One way in which a flow can be wrong: how it is seen on a chart, and how it is mended under the flow's lock."""

    name: str
    look: Callable[[Chart], Iterable[Finding]]
    mend: Callable[[Scene, Chart, Finding], Awaitable[None]] | None = None


class StoreCheck(NamedTuple):
    """One way in which what belongs to no flow can be wrong."""

    name: str
    look: Callable[[Reader, Limits], Awaitable[list[Finding]]]
    mend: Callable[[Store, Finding], Awaitable[None]] | None = None


def step_of(scene: Scene, finding: Finding) -> Row:
    """The step that a finding is about."""
    return next(row for row in scene.steps.values() if row["id"] == finding.id)


def as_json(finding: Finding) -> dict[str, Any]:
    """As commands print it."""
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

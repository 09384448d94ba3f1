"""The jobs that a batch of moves wakes: parents of finished children, and jobs that start to wait for what already
exists.

Both sides of a wait check: an event wakes the jobs that wait for it, and a job that starts to wait checks again whether
the event has happened. Only moves of children, and of jobs that start to wait, need this. For other moves, it costs
almost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from keptwork.core.decide import Change, Verb

ALL_CHILDREN, ANY_CHILD = "children", "a child"
EVENT, APPROVAL = "event ", "approval "
MORE_THAN_ANY = (1 << 31) - 1

_PARENT = itemgetter(Change._fields.index("parent_id"))


class Wakes(NamedTuple):
    """What to check after the moves.

    `parents` and `askers` are (job, last seen) of jobs that wait for children or a decision. `listeners` are (job,
    name, last seen) of jobs that wait for a signal, and `tenants` are the tenants of these signals. `several` are the
    rows of jobs that wait for several things: (job, its next epoch, number, name, until).
    """

    parents: list[tuple[int, int]]
    listeners: list[tuple[int, str, int]]
    askers: list[tuple[int, int]]
    tenants: list[int]
    ended: bool
    several: list[tuple[int, int, int, str, int | None]]

    @property
    def signals(self) -> list[str]:
        """The names to lock before checking whether a signal exists."""
        return [signal_lock(tenant, name) for tenant, (_, name, _) in zip(self.tenants, self.listeners, strict=True)]


def signal_lock(tenant_id: int, name: str) -> str:
    return f"{tenant_id} {name}"


def wakes(runs: Sequence[Sequence[Change]]) -> Wakes | None:
    """Return the checks for runs of the same move. Return None for nearly all moves."""
    found = Wakes([], [], [], [], False, [])
    for run in runs:
        if run[0].move.target.final:
            if any(map(_PARENT, run)):
                parents = {change.parent_id: MORE_THAN_ANY for change in run if change.parent_id is not None}
                found = found._replace(parents=found.parents + list(parents.items()), ended=True)
        elif run[0].move.verb is Verb.SNOOZE:
            for change in run:
                _note_wait(found, change)
    return found if found.parents or found.listeners or found.askers or found.several else None


def _note_wait(found: Wakes, change: Change) -> None:
    several = change.values.get("waits")
    if several is None:
        _note_one(found, change, change.values.get("waits_for") or "", change.values.get("seen") or 0)
        return
    for number, (name, until, seen) in enumerate(several):
        found.several.append((change.id, change.epoch + 1, number, name, until))
        _note_one(found, change, name, seen)


def _note_one(found: Wakes, change: Change, waits_for: str, seen: int) -> None:
    if waits_for in (ALL_CHILDREN, ANY_CHILD):
        found.parents.append((change.id, seen))
    elif waits_for.startswith(EVENT):
        found.listeners.append((change.id, waits_for.removeprefix(EVENT), seen))
        found.tenants.append(change.tenant_id)
    elif waits_for.startswith(APPROVAL):
        found.askers.append((change.id, seen))

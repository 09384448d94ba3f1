"""Finish a step and start the next one in a single statement, which most steps allow.

If the database is remote, each call is a round trip, and finishing a step under the lock of its tree takes ten of them.
So the engine first decides on a snapshot of the flow, which is read without a lock. If its only decision is to finish
one step and start another, one statement writes both, provided that the rows are still as in the snapshot and no other
transaction has locked the tree. In every other case nothing has changed, and the step finishes under the lock.

A snapshot contains some further steps. After a handover, the worker updates it with what it wrote and uses it again. An
outdated snapshot is harmless, because the statement then writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from keptwork.core import ids
from keptwork.core.lifecycles import Change, Lifecycle, Verb
from keptwork.errors import StoreError
from keptwork.flows import engine as advance
from keptwork.flows.compiled import KINDS, Kind, shape
from keptwork.flows.inline_batch import STRETCH, companions_of
from keptwork.flows.plan import Shape
from keptwork.flows.transaction import Row, Seat
from keptwork.store import Job, NewJob
from keptwork.store.counters import Tally
from keptwork.store.postgres.handover_unmoved import Unmoved

MOST_AROUND = 8
FORESEEN = 16
"""Maximum number of steps that a snapshot reads ahead."""

MOST_REMEMBERED = 100


class Unforeseen(Exception):
    """Raised if the engine needs something that the snapshot does not contain."""


class Picture:
    """A replacement for a transaction that reads from a snapshot and collects the writes."""

    def __init__(self, tally: Tally, kind: Kind, flow: Row, steps: Sequence[Row]) -> None:
        self.tally = tally
        self.kind = kind
        self.flow = flow
        self.steps_seen = {row["name"]: row for row in steps}
        self.changes: list[Change] = []
        self.jobs: list[NewJob] = []
        self._asked: dict[int, Row] = {}

    async def rows(self, lifecycle: Lifecycle, ids: Sequence[int]) -> list[Row]:
        return [self.flow]

    async def steps_by_key(self, ids: Sequence[int]) -> list[Row]:
        return self._shown(row for row in self.steps_seen.values() if row["id"] in ids)

    async def steps(self, flow: int, *, names: Sequence[str] | None = None) -> list[Row]:
        if names is None or not self.steps_seen.keys() >= set(names):
            raise Unforeseen
        return self._shown(self.steps_seen[name] for name in names)

    def _shown(self, rows: Iterable[Row]) -> list[Row]:
        shown = list(rows)
        self._asked |= {row["id"]: row for row in shown}
        return shown

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        self.changes += changes
        return []

    async def enqueue(self, jobs: Sequence[NewJob]) -> None:
        self.jobs += jobs

    def __getattr__(self, name: str) -> Any:
        raise Unforeseen(name)

    async def next_job(self, change: Change, seat: Seat) -> NewJob | None:
        """Return the job of the step that starts as this one finishes.

        Return None if anything else happens as well.
        """
        self.changes, self.jobs, self._asked = [], [], {}
        await advance.settled(self, [change])  # type: ignore[arg-type]  # the part of a transaction that it needs
        of_steps = all(one.lifecycle is not self.kind.flow for one in self.changes)
        alone = of_steps and len(self.changes) == 1 and len(self.jobs) == 1 and seat.is_for(self.jobs[0])
        return self.jobs[0] if alone else None

    def unmoved(self) -> list[Unmoved]:
        """Return the rows that must be unchanged, in addition to those that move.

        A starting step moves with its job.
        """
        moved = {change.id for change in self.changes}
        steps = [Unmoved("steps", id, row["seq"]) for id, row in self._asked.items() if id not in moved]
        return [Unmoved(self.kind.flow.table, self.flow["id"], self.flow["seq"]), *steps]

    def shows_begun(self, job: Job) -> bool:
        """Update the snapshot with the start of a job's step.

        Return False if the step had started before.
        """
        (row,) = (row for row in self.steps_seen.values() if row["id"] == job.step_id)
        if row["state"] != self.kind.step.initial.name:
            return False
        (start,) = self.kind.step.leading_out_of(row["state"], Verb.START)
        row |= {"state": start.target.name, "seq": row["seq"] + 1, "job_id": job.id, "attempts": job.attempts}
        return True


async def handed_over(store: Any, change: Change, bare: Change, seat: Seat) -> Job | None:
    """Return the started job of the next step.

    Return None, with nothing changed, if the step must finish under the lock. `bare` is the change as it is written,
    without the result, which is stored with the step only.
    """
    if seat.after is None or change.move.verb is not Verb.SUCCEED or _with_others(change, seat.after):
        return None
    try:
        picture, job = await _foreseen(store, change, seat, seat.after)
    except StoreError:
        raise
    except Exception:  # anything unforeseen or wrong occurs again under the lock, and is handled there
        return None
    if job is None:
        return None
    where = seat.worker, seat.lease_us, seat.claim_id
    begun = await store.hand_over([bare, *picture.changes], picture.unmoved(), job, *where)
    if begun is not None and picture.shows_begun(begun):
        _remember(seat.pictures, begun, picture)
    seat.taken_by = begun
    return seat.taken_by


def _with_others(change: Change, ended: Job) -> bool:
    """Return whether the job ran other steps, or has companions."""
    stretch = change.values.get(STRETCH)
    return bool((stretch is not None and stretch.carried) or companions_of(ended.payload))


async def _foreseen(store: Any, change: Change, seat: Seat, ended: Job) -> tuple[Picture, NewJob | None]:
    """Return the next job with the snapshot that it was decided on.

    Use the stored snapshot of the flow, or a new one if that is not sufficient.
    """
    remembered = seat.pictures.pop(ended.id, None)
    if remembered is not None:
        with suppress(Unforeseen):
            job = await remembered.next_job(change, seat)
            if job is not None:
                return remembered, job
    picture = await _picture(store, ended)
    return picture, await picture.next_job(change, seat)


def _remember(pictures: dict[int, Picture], job: Job, picture: Picture) -> None:
    if len(pictures) >= MOST_REMEMBERED:
        pictures.clear()
    pictures[job.id] = picture


async def _picture(store: Any, ended: Job) -> Picture:
    said = json.loads(ended.payload)
    name, key = said["step"], ids.key_of(said["flow"])
    if key is None or "[" in name:
        raise Unforeseen
    kind = next(kind for kind in KINDS.values() if kind.flow.prefix == key[0])
    names = _ahead(await shape(store, ended.tenant_id, said["template"]), name)
    flow, steps = await store.scene(kind.flow.table, key[1], sorted(names))
    if not flow:
        raise Unforeseen
    return Picture(store.tally, kind, flow, steps)


def _ahead(whole: Shape, name: str) -> set[str]:
    """Return the steps needed when this step finishes, and then when the next ones do.

    Raise `Unforeseen` if the first are too many. The later ones are included while they are few.
    """
    found = whole.around([name])
    if len(found) > MOST_AROUND:
        raise Unforeseen
    while len(further := whole.around(found)) <= FORESEEN and len(further) > len(found):
        found = further
    return found

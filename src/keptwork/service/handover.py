"""From one step straight to the next: the way most steps of most flows end, in one statement.

Far from the database every call is a journey, and ending a step under the lock of its tree takes ten of them. So the
engine is first given a picture of the flow, read without a lock, and decides on that. If all it wants is to end one
step and begin one other, this is written in one statement that changes nothing unless all is still as in the picture
and nobody else is at the tree. In every other case nothing has happened, and the usual way is gone.

A picture shows some steps more than are needed. Whoever has handed over knows what it wrote, and goes on with the same
picture: since nothing is written unless it is true, one that is not true any more does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from keptwork import ids
from keptwork.errors import StoreError
from keptwork.flow.shape import Shape
from keptwork.lifecycle import Change, Lifecycle, Verb
from keptwork.service import advance
from keptwork.service.definitions import KINDS, Kind, shape
from keptwork.service.flow_scene import Row
from keptwork.service.seat import Seat
from keptwork.service.stretch import STRETCH, companions_of
from keptwork.store import Job, NewJob
from keptwork.store.handover import Unmoved
from keptwork.store.tally import Tally

MOST_AROUND = 8
FORESEEN = 16
"""So many steps are read at one look."""

MOST_REMEMBERED = 100


class Unforeseen(Exception):
    """The engine wants something that the picture does not show."""


class Picture:
    """Stands in for a transaction: answers from what was read, and gathers what is to be written."""

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
        """The job of the step that begins as this one ends; none if that is not all that happens then."""
        self.changes, self.jobs, self._asked = [], [], {}
        await advance.settled(self, [change])  # type: ignore[arg-type]  # all of a transaction that is needed
        of_steps = all(one.lifecycle is not self.kind.flow for one in self.changes)
        alone = of_steps and len(self.changes) == 1 and len(self.jobs) == 1 and seat.is_for(self.jobs[0])
        return self.jobs[0] if alone else None

    def unmoved(self) -> list[Unmoved]:
        """What must be as it is here, beside what is moved. A step that begins is moved with its job."""
        moved = {change.id for change in self.changes}
        steps = [Unmoved("steps", id, row["seq"]) for id, row in self._asked.items() if id not in moved]
        return [Unmoved(self.kind.flow.table, self.flow["id"], self.flow["seq"]), *steps]

    def shows_begun(self, job: Job) -> bool:
        """Follows what the job has made of its step as it began; false if that had begun before."""
        (row,) = (row for row in self.steps_seen.values() if row["id"] == job.step_id)
        if row["state"] != self.kind.step.initial.name:
            return False
        (start,) = self.kind.step.leading_out_of(row["state"], Verb.START)
        row |= {"state": start.target.name, "seq": row["seq"] + 1, "job_id": job.id, "attempts": job.attempts}
        return True


async def handed_over(store: Any, change: Change, bare: Change, seat: Seat) -> Job | None:
    """The job of the next step, begun; none, with nothing changed, if it must be done the usual way. `bare` is the
    change as it is written: what came of a step is kept with the step alone."""
    if seat.after is None or change.move.verb is not Verb.SUCCEED or _with_others(change, seat.after):
        return None
    try:
        picture, job = await _foreseen(store, change, seat, seat.after)
    except StoreError:
        raise
    except Exception:  # what is unforeseen, or wrong with the flow, shows again on the usual way, where it is told
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
    """Whether other steps were carried out by the same job, or were to be."""
    stretch = change.values.get(STRETCH)
    return bool((stretch is not None and stretch.carried) or companions_of(ended.payload))


async def _foreseen(store: Any, change: Change, seat: Seat, ended: Job) -> tuple[Picture, NewJob | None]:
    """What comes next: by the picture that is remembered, or, if that does not show it, by a new one."""
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
    """What matters when this step ends, and then when those after it do, as far as that is little."""
    found = whole.around([name])
    if len(found) > MOST_AROUND:
        raise Unforeseen
    while len(further := whole.around(found)) <= FORESEEN and len(further) > len(found):
        found = further
    return found

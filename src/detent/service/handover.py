"""From one step straight to the next: the way most steps of most flows end, in one look and one statement.

Far from the database every call is a journey, and ending a step under the lock of its tree takes ten of them. So the
engine is first given a picture of the flow, read without a lock, and decides on that. If all it wants is to end one
step and begin one other, this is written in one statement that changes nothing unless all is still as in the picture
and nobody else is at the tree. In every other case nothing has happened, and the usual way is gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from detent import ids
from detent.errors import StoreError
from detent.lifecycle import Change, Lifecycle, Verb
from detent.service import advance
from detent.service.definitions import KINDS, shape
from detent.service.flow_scene import Row
from detent.service.seat import Seat
from detent.service.stretch import STRETCH, companions_of
from detent.store import Job, NewJob
from detent.store.handover import Unmoved
from detent.store.tally import Tally

MOST_AROUND = 8


class Unforeseen(Exception):
    """The engine wants something that the picture does not show."""


class Picture:
    """Stands in for a transaction: answers from what was read, and gathers what is to be written."""

    def __init__(self, tally: Tally, flow: Row, steps: Sequence[Row]) -> None:
        self.tally = tally
        self.flow = flow
        self.steps_seen = {row["name"]: row for row in steps}
        self.seen = {row["id"]: row["seq"] for row in (flow, *steps)}
        self.changes: list[Change] = []
        self.jobs: list[NewJob] = []

    async def rows(self, lifecycle: Lifecycle, ids: Sequence[int]) -> list[Row]:
        return [self.flow]

    async def steps_by_key(self, ids: Sequence[int]) -> list[Row]:
        return [row for row in self.steps_seen.values() if row["id"] in ids]

    async def steps(self, flow: int, *, names: Sequence[str] | None = None) -> list[Row]:
        if names is None or not self.steps_seen.keys() >= set(names):
            raise Unforeseen
        return [self.steps_seen[name] for name in names]

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        self.changes += changes
        return []

    async def enqueue(self, jobs: Sequence[NewJob]) -> None:
        self.jobs += jobs

    def __getattr__(self, name: str) -> Any:
        raise Unforeseen(name)

    def unmoved(self, flows: Lifecycle) -> list[Unmoved]:
        """What must be as it is here, beside what is moved. A step that begins is moved with its job."""
        moved = {change.id for change in self.changes}
        rest = [id for id in self.seen if id not in moved]
        return [Unmoved(flows.table if id == self.flow["id"] else "steps", id, self.seen[id]) for id in rest]


async def handed_over(store: Any, change: Change, bare: Change, seat: Seat) -> Job | None:
    """The job of the next step, begun; none, with nothing changed, if it must be done the usual way. `bare` is the
    change as it is written: what came of a step is kept with the step alone."""
    if seat.after is None or change.move.verb is not Verb.SUCCEED or _with_others(change, seat.after):
        return None
    try:
        kind, picture = await _picture(store, seat.after)
        await advance.settled(picture, [change])  # type: ignore[arg-type]  # all of a transaction that is needed
    except StoreError:
        raise
    except Exception:  # what is unforeseen, or wrong with the flow, shows again on the usual way, where it is told
        return None
    of_steps = all(one.lifecycle is not kind for one in picture.changes)
    if not (of_steps and len(picture.changes) == 1 and len(picture.jobs) == 1 and seat.is_for(picture.jobs[0])):
        return None
    where = seat.worker, seat.lease_us, seat.claim_id
    moves = [bare, *picture.changes]
    seat.taken_by = await store.hand_over(moves, picture.unmoved(kind), picture.jobs[0], *where)
    return seat.taken_by


def _with_others(change: Change, ended: Job) -> bool:
    """Whether other steps were carried out by the same job, or were to be."""
    stretch = change.values.get(STRETCH)
    return bool((stretch is not None and stretch.carried) or companions_of(ended.payload))


async def _picture(store: Any, ended: Job) -> tuple[Lifecycle, Picture]:
    said = json.loads(ended.payload)
    name, key = said["step"], ids.key_of(said["flow"])
    if key is None or "[" in name:
        raise Unforeseen
    kind = next(kind.flow for kind in KINDS.values() if kind.flow.prefix == key[0])
    around = (await shape(store, ended.tenant_id, said["template"])).around([name])
    if len(around) > MOST_AROUND:
        raise Unforeseen
    flow, steps = await store.scene(kind.table, key[1], sorted(around))
    if not flow:
        raise Unforeseen
    return kind, Picture(store.tally, flow, steps)

"""The test's own count of moves: each process writes down what it asked its store for and what it heard.

It knows nothing of the event log. What a call acknowledged was made; what was asked for and never answered, because the
process was killed or its connection lost, may have been made or not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from keptwork.core.lifecycles import Change, Lifecycle
from keptwork.store import Event, Job, NewJob, Store
from tests.acceptance.examination import RANK


class Made(NamedTuple):
    """One move of one entity."""

    entity: str
    id: int
    seq: int
    epoch: int
    trigger: str
    state: str


class Witness:
    """A store that hands every call on and writes down those that move something."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._calls = count()
        self._file = os.open(folder / f"{os.getpid()}-{id(self)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        call = self._asks("enqueue")
        keys = await self._store.enqueue(jobs)
        self._hears(call, [Made("job", key, 1, 0, "enqueue", "queued") for key in keys])
        return keys

    async def claim(self, worker: int, *wanted: Any, **how: Any) -> list[Job]:
        call = self._asks("claim", [f"w:{worker}"])
        jobs = await self._store.claim(worker, *wanted, **how)
        self._hears(call, [made for job in jobs for made in _claimed(job)])
        return jobs

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        call = self._asks("apply", [_changed(change) for change in changes])
        late = await self._store.apply(changes)
        self._hears(call, [_changed(change) for change in changes if all(change is not one for one in late)])
        return late

    async def create(self, lifecycle: Lifecycle, **columns: Any) -> int:
        call = self._asks("create")
        id = await self._store.create(lifecycle, **columns)
        creation = lifecycle.creation
        self._hears(call, [Made(lifecycle.name, id, 1, 0, creation.trigger, creation.target.name)])
        return id

    def _asks(self, what: str, which: Sequence[Any] = ()) -> int:
        call = next(self._calls)
        self._write({"call": call, "asks": what, "which": which})
        return call

    def _hears(self, call: int, moves: list[Made]) -> None:
        self._write({"call": call, "hears": moves})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def _claimed(job: Job) -> Iterator[Made]:
    """A claim that starts its jobs as well is two moves."""
    started = job.state == "running"
    yield Made("job", job.id, job.seq - started, job.epoch, "claim", "assigned")
    if started:
        yield Made("job", job.id, job.seq, job.epoch, "start", "running")


def _changed(change: Change) -> Made:
    move = change.move
    return Made(change.lifecycle.name, change.id, change.seq + 1, change.next_epoch, move.trigger, move.target.name)


@dataclass(slots=True)
class Statement:
    """What all processes wrote down."""

    heard: set[Made] = field(default_factory=set)
    unanswered: set[Made] = field(default_factory=set)
    claimers: set[str] = field(default_factory=set)
    births: int = 0


def statement(folder: Path) -> Statement:
    """Read when all processes are gone."""
    told = Statement()
    for path in folder.iterdir():
        asked: dict[int, dict[str, Any]] = {}
        for line in map(json.loads, path.read_text().splitlines()):
            if "asks" in line:
                asked[line["call"]] = line
            else:
                asked.pop(line["call"])
                told.heard |= {Made(*made) for made in line["hears"]}
        for line in asked.values():
            _add_unanswered(told, line)
    return told


def _add_unanswered(told: Statement, line: dict[str, Any]) -> None:
    if line["asks"] == "claim":
        told.claimers |= set(line["which"])
    elif line["asks"] == "apply":
        told.unanswered |= {Made(*made) for made in line["which"]}
    else:
        told.births += 1


@dataclass(slots=True)
class Account:
    """The log held against what was written down."""

    events: int
    heard: int
    never_answered: int
    not_logged: list[Made]
    unasked: list[Made]
    backward: list[str]

    @property
    def wrong(self) -> list[str]:
        wrong = [f"{made} was acknowledged and has no event" for made in self.not_logged]
        wrong += [f"{made} has an event and nobody asked for it" for made in self.unasked]
        if self.heard + self.never_answered != self.events:
            wrong.append(f"{self.heard} moves acknowledged, {self.never_answered} not, but {self.events} events")
        return wrong + self.backward

    def __str__(self) -> str:
        return (
            f"{self.events} events = {self.heard} moves acknowledged + {self.never_answered} whose process died "
            f"before it heard, {len(self.not_logged)} without an event, {len(self.unasked)} never asked for, "
            f"{len(self.backward)} backward"
        )


def account(told: Statement, log: Iterable[Event]) -> Account:
    """Every acknowledged move has one event; an event without one belongs to a call that was never answered."""
    log = list(log)
    logged = {made_by(event): event for event in log}
    rest = [event for made, event in logged.items() if made not in told.heard]
    unasked = [made_by(event) for event in rest if not _may_have_been_asked_for(told, event)]
    not_logged = sorted(told.heard - logged.keys())
    return Account(len(log), len(told.heard), len(rest) - len(unasked), not_logged, unasked, list(_backward(told)))


def made_by(event: Event) -> Made:
    """The move an event tells of."""
    return Made(event.entity, event.entity_id, event.seq, event.epoch, event.trigger, event.to_state)


def _may_have_been_asked_for(told: Statement, event: Event) -> bool:
    if event.trigger in ("claim", "start"):
        return event.actor in told.claimers
    return made_by(event) in told.unanswered or (event.seq == 1 and told.births > 0)


def _backward(told: Statement) -> Iterator[str]:
    jobs = sorted((made for made in told.heard if made.entity == "job"), key=lambda made: (made.id, made.seq))
    for _, moves in groupby(jobs, key=lambda made: made.id):
        for before, after in pairwise(moves):
            if (after.epoch, RANK[after.state]) <= (before.epoch, RANK[before.state]):
                yield f"job {after.id} went from {before.state} to {after.state} in epoch {after.epoch}"

"""A flow under its lock inside one transaction: rows that were read, and moves to write.

Each move is decided on the row as the previous moves leave it. The moves are collected, and written in few batches.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from keptwork.agents import engine as agent_moves
from keptwork.core import ids
from keptwork.core.lifecycles import JOB, Change, Lifecycle, Move, Verb, decide, insist
from keptwork.flows.compiled import KINDS, Kind, shape
from keptwork.flows.expression import Look, Reference
from keptwork.flows.plan import NO_ITEM, NoOutput, Phase, Shape, flow_phases, looking, phases
from keptwork.store import Blob, Job, NewJob
from keptwork.store.contract.flows_steps import Output
from keptwork.store.contract.store import Reader, Transaction

if TYPE_CHECKING:
    from keptwork.flows.handover import Picture


# A free slot of a worker, for the step that comes next.


@dataclass(slots=True)
class Seat:
    """A worker's free slot for the job of the next step, which then needs no claim.

    If exactly one step comes next, and the worker knows of no other due job, the job starts when it is created. A
    repeated claim with the same `claim_id` returns such jobs. `after` is the job that has finished, if it is only one.
    `pictures` has the worker's snapshots of flows, by the jobs that it has started.
    """

    worker: int
    lease_us: int
    claim_id: int
    queues: Container[str]
    tenant_id: int | None = None
    after: Job | None = None
    taken_by: Job | None = None
    pictures: dict[int, Picture] = field(default_factory=dict)

    def is_for(self, job: NewJob) -> bool:
        """Return whether the slot is free and a claim of this worker could return the job.

        A job that a breaker might hold is enqueued normally.
        """
        own = self.tenant_id is None or self.tenant_id == job.tenant_id
        return own and self.taken_by is None and job.hold_key is None and job.queue in self.queues

    async def take(self, tx: Transaction, job: NewJob) -> None:
        """Create the job, and start it here if its queue is served.

        Otherwise it waits there, and the slot stays free.
        """
        made = await tx.enqueue_started(job, self.worker, self.lease_us, self.claim_id)
        self.taken_by = made if made.owner == self.worker else None


LARGEST_IN_ROW = 8 << 10

Row = dict[str, Any]


class Moved(Exception):
    """Raised if something moved a part of the flow without the lock.

    For example, a worker started a job. All rows of the flow must then be read again.
    """


class Actor(NamedTuple):
    """The name of what changes a flow, and the reason."""

    name: str | None = None
    reason: str | None = None


class Scene:
    """A flow, and those of its steps that were read."""

    def __init__(self, tx: Transaction, kind: Kind, flow: Row, shape: Shape, actor: Actor = Actor()) -> None:  # noqa: B008
        self.tx = tx
        self.kind = kind
        self._meaning, self._own_meaning = phases(kind.step), flow_phases(kind.flow)
        self.flow = flow
        self.shape = shape
        self.actor = actor
        self.steps: dict[str, Row] = {}
        self.changes: list[Change] = []
        self.jobs: list[NewJob] = []
        self.ends = False
        """Whether this transaction has ended the flow and not yet propagated the end."""
        self.starting = False
        self.alone: frozenset[str] = frozenset()
        self.at_once = 0
        self.careful = 0
        """How inline steps start in this transaction: see `Stretch` in inline_batch.py."""
        self.seat: Seat | None = None
        self._values: dict[str, Any] = {}

    @classmethod
    async def of(cls, tx: Transaction, kind: Kind, flow: Row, actor: Actor = Actor()) -> Scene:  # noqa: B008
        return cls(tx, kind, flow, await shape(tx, flow["tenant_id"], flow["template_id"]), actor)

    # --- the flow

    @property
    def id(self) -> int:
        return int(self.flow["id"])

    @property
    def tenant_id(self) -> int:
        return int(self.flow["tenant_id"])

    @property
    def tree(self) -> int:
        """Key of the outermost flow."""
        return int(self.flow["tree_id"] or self.flow["id"])

    @cached_property
    def public_id(self) -> str:
        return ids.public(self.kind.flow.prefix, self.id)

    @property
    def over(self) -> bool:
        return self.kind.flow.state(self.flow["state"]).final

    @property
    def own_phase(self) -> Phase:
        """What the state of the flow means for its steps."""
        return self._own_meaning[self.flow["state"]]

    def phase(self, step: Row) -> Phase:
        return self._meaning[step["state"]]

    @property
    def by_phase(self) -> Mapping[str, Phase]:
        """Phases of the steps that were read, by name."""
        return {name: self._meaning[step["state"]] for name, step in self.steps.items()}

    # --- reading

    async def look_at(self, names: Iterable[str]) -> None:
        """Read those of these steps that were not read yet."""
        missing = [name for name in names if name not in self.steps]
        if missing:
            self.steps |= {step["name"]: step for step in await self.tx.steps(self.id, names=missing)}

    async def look_at_all(self) -> None:
        """Read every step, including the items of `for_each` steps."""
        found = await self.tx.steps(self.id)
        self.steps = {step["name"]: self.steps.get(step["name"], step) for step in found}

    async def values(self, wanted: Iterable[Reference], item: Any = NO_ITEM, *, cut: bool = False) -> Look:
        """Look up these values, and read those of steps from the database.

        `cut` accepts output that was truncated.
        """
        names = {one.root for one in wanted if one.root in self.shape.steps} - set(self._values)
        values: dict[str, Any] = {}
        if names:
            await self.write()  # outputs that this transaction has stored count
            for output in await self.tx.outputs(self.id, sorted(names)):
                values[output.name] = await value_of(self.tx, self.tenant_id, self.kind, output)
        # A step without an output can have one later in this transaction.
        self._values |= {name: value for name, value in values.items() if not isinstance(value, NoOutput)}
        known = {"flow": {"id": self.public_id, "name": self.flow["name"]}, "inputs": inputs_of(self.flow)}
        return looking({**self._values, **values, **known}, item, cut=cut)

    # --- deciding

    def move(self, step: Row, verb: Verb, reason: str | None = None, **values: Any) -> None:
        """Decide a move of a step. The caller holds the lock and has checked the conditions of the move."""
        self._move(self.kind.step, step, verb, reason, values)

    def move_through(self, step: Row, **values: Any) -> None:
        """Decide that a step has started and succeeded."""
        name, reason = self.actor
        change = insist(
            decide(
                self.kind.step,
                step,
                Verb.START,
                then=Verb.SUCCEED,
                actor=name,
                reason=reason,
                values=values,
                dependencies_met=True,
            )
        )
        self.changes.append(change)
        step["state"] = change.move.target.name
        step["seq"] += change.move.events

    def move_flow(self, verb: Verb, reason: str | None = None, **values: Any) -> None:
        """Decide a move of the flow itself."""
        self._move(self.kind.flow, self.flow, verb, reason, values)
        self.ends |= self.over

    def _move(self, lifecycle: Lifecycle, row: Row, verb: Verb, reason: str | None, values: Mapping[str, Any]) -> None:
        because = reason if reason is not None else self.actor.reason
        change = insist(
            decide(lifecycle, row, verb, actor=self.actor.name, reason=because, values=values, dependencies_met=True)
        )
        self.changes.append(change)
        row |= {"state": change.move.target.name, "seq": row["seq"] + 1}
        row |= {name: value for name, value in values.items() if name in row}
        if verb is Verb.RETRY and "retry_count" in row and change.move.target != lifecycle.initial:
            row["retry_count"] += 1

    def cancel_job(self, job: Any, reason: str) -> None:
        """Decide that a job is cancelled, unless its lifecycle refuses."""
        decision = decide(JOB, job, Verb.CANCEL, actor=self.actor.name, reason=reason, cause=self.public_id)
        if isinstance(decision, Change):
            self.changes.append(decision)

    # --- writing

    async def write(self, seat: Seat | None = None) -> None:
        """Write all decided moves, jobs first, because a claim locks jobs before their steps.

        If exactly one job must be enqueued, it can take the worker slot `seat`. Pass `seat` only when nothing more will
        be decided.
        """
        changes, self.changes = self.changes, []
        if changes and await agent_moves.write(self.tx, [change for wave in waves(changes) for change in wave]):
            raise Moved
        jobs, self.jobs = self.jobs, []
        if len(jobs) == 1 and seat is not None and seat.is_for(jobs[0]):
            await seat.take(self.tx, jobs[0])
        elif jobs:
            await self.tx.enqueue(jobs)

    async def kept(self, text: str | None) -> dict[str, Any]:
        """Return the output columns of a step. Large output is stored as a blob, by its hash."""
        if text is None or len(text) <= LARGEST_IN_ROW:
            return {"output": text, "output_hash": None}
        blob = Blob.of(text.encode())
        await self.tx.keep_blob(self.tenant_id, blob)
        return {"output": blob.note, "output_hash": blob.hash}


def waves(changes: Sequence[Change]) -> list[list[Change]]:
    """Group changes into few batches that keep the order of the moves of each record.

    The first wave has the first move of every record, the second wave the second moves, and so on. Within a wave, jobs
    come first and starts come last, so that the log shows the end of a step before the start of the next steps.
    """
    seen: dict[tuple[str, int], int] = {}
    found: dict[int, dict[Move, list[Change]]] = {}
    for change in changes:
        key = (change.lifecycle.table, change.id)
        wave = seen[key] = seen.get(key, -1) + 1
        found.setdefault(wave, {}).setdefault(change.move, []).append(change)
    return [
        [change for alike in sorted(found[wave].values(), key=_place) for change in alike] for wave in sorted(found)
    ]


def _place(alike: Sequence[Change]) -> tuple[bool, str, bool, str]:
    lifecycle, move = alike[0].lifecycle, alike[0].move
    return lifecycle is not JOB, lifecycle.table, move.verb in (Verb.START, Verb.GATE), move.trigger


async def content(tx: Reader, tenant_id: int, output: Output) -> Any:
    """Return the output of a step as data, or None if it has no output."""
    if output.output_hash is not None:
        blob = await tx.blob(tenant_id, output.output_hash)
        return None if blob is None else json.loads(blob)
    return None if output.output is None else json.loads(output.output)


_NO_OUTPUT = {
    Phase.WAITING: NoOutput("has not run yet", later=True),
    Phase.ACTIVE: NoOutput("has not finished yet", later=True),
    Phase.SATISFIED: NoOutput("finished without output"),
    Phase.FAILED: NoOutput("failed"),
    Phase.GONE: NoOutput("was cancelled"),
}
_SKIPPED = NoOutput("did not run: it was skipped")
_LOST = NoOutput("left an output that is no longer stored")


async def value_of(tx: Reader, tenant_id: int, kind: Kind, output: Output) -> Any:
    """Return the output of a step as data, or a `NoOutput` with the reason if there is none."""
    if output.output_hash is not None:
        found = await content(tx, tenant_id, output)
        return _LOST if found is None else found
    if output.output is not None:
        return json.loads(output.output)
    return no_output(kind, output.state)


def no_output(kind: Kind, state: str) -> NoOutput:
    """Return why a step in this state has no output."""
    skipped = any(move.verb is Verb.SKIP and move.target.name == state for move in kind.step.moves)
    return _SKIPPED if skipped else _NO_OUTPUT[phases(kind.step)[state]]


def cost_of(text: str | None) -> int | None:
    """Return the cost in micro-USD that an agent's step reports, or None if it reports none."""
    if not text or '"cost_micros"' not in text:
        return None
    said = json.loads(text)
    cost = said.get("cost_micros") if isinstance(said, dict) else None
    return cost if isinstance(cost, int) else None


def inputs_of(flow: Row) -> dict[str, Any]:
    """Return the inputs that a flow was started with."""
    found: dict[str, Any] = json.loads(flow["inputs"]) if flow["inputs"] else {}
    return found


async def flow_of(tx: Transaction, step: Row) -> tuple[Kind, Row]:
    """Return the kind and the row of the flow that a step belongs to."""
    kind = KINDS["run" if step["lifecycle"] == KINDS["run"].step.name else "workstream"]
    (flow,) = await tx.rows(kind.flow, [step["flow_id"]])
    return kind, flow

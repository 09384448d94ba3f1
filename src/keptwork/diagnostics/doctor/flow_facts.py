"""Everything about one flow at one moment that shows whether it is consistent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keptwork.core.durations import span_us
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, LIFECYCLES, Verb
from keptwork.errors import BadInput
from keptwork.flows.compiled import KINDS, Kind, shape
from keptwork.flows.inline_batch import worked_on
from keptwork.flows.plan import Phase, Shape, phases
from keptwork.flows.steps.kind import EXECUTED
from keptwork.flows.transaction import Row
from keptwork.store import Job
from keptwork.store.contract.store import Reader
from keptwork.store.contract.waits_approvals import Approval

JOB_COLUMNS = ("id", "state", "error", "reason", "result", "result_hash", "updated_at", "completed_at", "payload")


class Limits(NamedTuple):
    """Time in µs after which an entity in a state counts as stuck: by state, and for all others."""

    by_state: Mapping[str, int]
    otherwise: int = 3_600_000_000

    def of(self, state: str) -> int:
        return self.by_state.get(state, self.otherwise)

    @classmethod
    def said(cls, said: Sequence[str]) -> Limits:
        """Parse the limits that users write: a duration for all states, or STATE=DURATION for one."""
        by_state: dict[str, int] = {}
        otherwise = cls({}).otherwise
        for one in said:
            state, sign, span = one.rpartition("=")
            if sign:
                by_state |= dict.fromkeys(_states(state), span_us(span))
            else:
                otherwise = span_us(span)
        return cls(by_state, otherwise)


def _states(said: str) -> list[str]:
    """Return the states of that name in all lifecycles."""
    wanted = said.strip().replace("-", "_").casefold()
    known = {state.name for one in LIFECYCLES.values() for state in one.states}
    if names := [name for name in known if name.casefold() == wanted]:
        return names
    raise BadInput(what=f"no lifecycle has a state {said!r}; see: keptwork lifecycles list")


USUAL = Limits({})


@dataclass(slots=True)
class Chart:
    """A flow with its steps by name, their jobs, approval requests, nested flows, and crews.

    `own` are the steps that the definition names; the other steps are items of these. `ended` are the last jobs of
    running steps that no job works on. `around` is the step of the parent flow.
    """

    kind: Kind
    flow: Row
    shape: Shape
    now: int
    steps: dict[str, Row] = field(default_factory=dict)
    own: dict[str, Row] = field(default_factory=dict)
    jobs: dict[int, list[Job]] = field(default_factory=dict)
    ended: dict[int, Row] = field(default_factory=dict)
    gates: dict[int, Approval] = field(default_factory=dict)
    inner: dict[int, list[tuple[Kind, Row]]] = field(default_factory=dict)
    crews: dict[int, list[Row]] = field(default_factory=dict)
    around: Row | None = None
    limits: Limits = USUAL
    first_of_step: bool = True
    _by_key: dict[int, Row] = field(default_factory=dict)
    _elements: dict[int, list[Row]] = field(default_factory=dict)

    @classmethod
    async def of(cls, reader: Reader, kind: Kind, flow: Row, limits: Limits = USUAL) -> Chart:
        """Read the chart of a flow in the reader's snapshot."""
        chart = cls(kind, flow, await shape(reader, flow["tenant_id"], flow["template_id"]), await reader.now())
        chart.limits = limits
        chart._sort(await reader.steps(flow["id"]))
        chart._sort_jobs(await reader.unfinished_jobs(flow["tree_id"] or flow["id"]))
        await chart._look_at_jobs(reader)
        await chart._look_at_gates(reader)
        await chart._look_inside(reader)
        await chart._look_at_crews(reader)
        await chart._look_around(reader)
        return chart

    def _sort(self, rows: Sequence[Row]) -> None:
        """Index the steps once.

        Checks read them repeatedly, which would otherwise take minutes for thousands of steps.
        """
        self.steps = {row["name"]: row for row in rows}
        self.own = {row["name"]: row for row in rows if row["parent_id"] is None}
        self._by_key = {row["id"]: row for row in self.own.values()}
        for row in rows:
            if row["parent_id"] is not None:
                self._elements.setdefault(row["parent_id"], []).append(row)

    def _sort_jobs(self, jobs: Sequence[Job]) -> None:
        """Index the jobs by step. A waiting step can be a companion in the job of another step."""
        mine = {row["id"] for row in self.steps.values()}
        for job in jobs:
            if job.step_id is not None and job.step_id in mine:
                self.jobs.setdefault(job.step_id, []).append(job)
        for name, job in worked_on(self.name, jobs):
            row = self.steps.get(name)
            if row is not None and self.phase(row) is Phase.WAITING:
                self.jobs.setdefault(row["id"], [job])

    async def _look_at_jobs(self, reader: Reader) -> None:
        lost = [row for row in self.steps.values() if self.has_lost_its_job(row) and row["job_id"] is not None]
        rows = await reader.rows(JOB, [row["job_id"] for row in lost], JOB_COLUMNS) if lost else []
        self.ended = {row["id"]: row for row in rows}

    async def _look_at_gates(self, reader: Reader) -> None:
        for row in self.steps.values():
            if self.step_kind(row) == "approval":
                asked = await reader.gate(self.flow["tenant_id"], row["id"])
                if asked is not None:
                    self.gates[row["id"]] = asked

    async def _look_inside(self, reader: Reader) -> None:
        for row in self.steps.values():
            if self.step_kind(row) == "flow" and self.phase(row) is not Phase.WAITING:
                found = [
                    (kind, flow) for kind in KINDS.values() for flow in await reader.subflows(kind.flow, row["id"])
                ]
                self.inner[row["id"]] = sorted(found, key=lambda one: -one[1]["id"])

    async def _look_at_crews(self, reader: Reader) -> None:
        for row in self.steps.values():
            if self.step_kind(row) == "crew" and self.phase(row) is Phase.ACTIVE:
                self.crews[row["id"]] = await reader.crews_of_step(row["id"])

    async def _look_around(self, reader: Reader) -> None:
        step_id = self.flow["step_id"]
        if step_id is None:
            return
        rows = await reader.steps_by_key([step_id])
        self.around = rows[0] if rows else None
        newest = [flow["id"] for kind in KINDS.values() for flow in await reader.subflows(kind.flow, step_id)]
        self.first_of_step = max(newest) == self.flow["id"]

    # --- the flow

    @property
    def name(self) -> str:
        return public_id(self.kind.flow.name, self.flow["id"])

    @property
    def over(self) -> bool:
        return self.kind.flow.state(self.flow["state"]).final

    @property
    def succeeded(self) -> bool:
        return bool(self.flow["state"] == success(self.kind))

    @property
    def failing(self) -> bool:
        """Whether the flow has failed and is not running a retry."""
        into = {move.target.name for move in self.kind.flow.moves if move.verb in (Verb.FAIL, Verb.RETRY)}
        return self.flow["state"] in into and not self.over

    @property
    def active(self) -> bool:
        """Whether the flow has neither finished nor failed. It can be held."""
        return not self.over and not self.failing

    @property
    def held(self) -> bool:
        return self.flow["held_at"] is not None

    @property
    def all_jobs(self) -> list[Job]:
        """All jobs of the flow, each once, even if several steps share it."""
        return list({job.id: job for found in self.jobs.values() for job in found}.values())

    def phase(self, row: Row) -> Phase:
        return phases(self.kind.step)[row["state"]]

    def final(self, row: Row) -> bool:
        return self.kind.step.state(row["state"]).final

    def parent(self, row: Row) -> Row | None:
        return self._by_key.get(row["parent_id"])

    def elements(self, row: Row) -> list[Row]:
        return self._elements.get(row["id"], [])

    def step_kind(self, row: Row) -> str:
        """Return the kind of a step, or `list` for a `for_each` step."""
        step = self.shape.steps[str(row["name"]).partition("[")[0]]
        return "list" if step.for_each is not None and row["parent_id"] is None else step.kind

    def executed(self, row: Row) -> bool:
        """Return whether a job runs the step."""
        return self.step_kind(row) in EXECUTED

    def has_lost_its_job(self, row: Row) -> bool:
        """Return whether the step is running and needs a job, but no job works on it."""
        waits = row["state"] in asking_states(self.kind)
        begun = self.phase(row) is Phase.ACTIVE and not waits
        return begun and self.executed(row) and row["id"] not in self.jobs

    def step_name(self, row: Row) -> str:
        return public_id(self.kind.step.name, row["id"])

    def asking(self, row: Row) -> bool:
        """Return whether the step waits for an approval."""
        return self.step_kind(row) == "approval" and self.phase(row) is Phase.ACTIVE

    def open_gate(self, row: Row) -> Approval | None:
        asked = self.gates.get(row["id"])
        return asked if asked is not None and asked.decision is None else None

    def unfinished_inner(self, row: Row) -> list[tuple[Kind, Row]]:
        return [(kind, flow) for kind, flow in self.inner.get(row["id"], []) if not final_flow(kind, flow)]

    def unfinished_crew(self, row: Row) -> Row | None:
        return next((crew for crew in self.crews.get(row["id"], []) if crew["completed_at"] is None), None)

    @property
    def last_moved_at(self) -> int:
        """When the flow, a step, or a job of it moved last."""
        jobs = [job.run_at for job in self.all_jobs if job.run_at <= self.now]
        return max([int(self.flow["updated_at"]), *(int(row["updated_at"]) for row in self.steps.values()), *jobs])


def success(kind: Kind) -> str:
    """Return the state of a flow that succeeded."""
    return next(move.target.name for move in kind.flow.moves if move.verb is Verb.SUCCEED)


def final_flow(kind: Kind, flow: Row) -> bool:
    return kind.flow.state(flow["state"]).final


def asking_states(kind: Kind) -> set[str]:
    """Return the states of a step that only an approval request leads to."""
    return {move.target.name for move in kind.step.moves if move.verb is Verb.GATE}

"""A flow as it goes on: its steps as they are now, brought up to date by the event log.

Each look reads the flow itself, what the log has new under its id, and the rows of the steps that moved. What is inside
a step, the elements of its list or the steps of its flow, counts for that step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from keptwork import ids
from keptwork.flow.definition import Flow
from keptwork.flow.drawing import about
from keptwork.flow.phase import Phase, phases
from keptwork.flow.shape import Shape
from keptwork.lifecycle import JOB, RUN_STEP, WORKSTREAM_STEP, Lifecycle, Verb
from keptwork.lifecycle.job import QUEUED
from keptwork.service.approvals import asked_by
from keptwork.service.definitions import KINDS, Kind, shape
from keptwork.service.entities import public_id
from keptwork.service.flow_scene import Row
from keptwork.service.flows import FlowRef
from keptwork.service.job_steps import Said, said
from keptwork.service.shown_steps import beginnings, in_last_round
from keptwork.service.why import why
from keptwork.store import Store
from keptwork.store.approvals import Approval
from keptwork.store.protocol import Reader
from keptwork.store.records import EventFilter
from keptwork.store.wakes import APPROVAL

PAGE = 1_000
MOST_HEARD = 20
STEPS = (RUN_STEP.name, WORKSTREAM_STEP.name)
OF_JOBS = (
    "id", "state", "step_id", "held_by", "waits_for", "run_at", "owner", "attempts", "max_attempts", "lease_until",
)  # fmt: skip


class Inside(NamedTuple):
    """How much of what is inside a step is done."""

    done: int
    total: int


class FlowView:
    """One flow. `steps` are its own by their keys, in order, with when they began in their last round, `said` what
    those that run have said last; `look` brings everything up to date but the latter, `listen` that."""

    def __init__(self, store: Store, ref: FlowRef, tenant_id: int) -> None:
        self._store = store
        self.ref = ref
        self.tenant_id = tenant_id
        self.flow: Row = {}
        self.definition: Flow
        self._shape: Shape
        self.steps: dict[int, Row] = {}
        self.within: dict[int, dict[int, Row]] = {}
        self.said: dict[int, str] = {}
        self.events = 0
        self.now = 0
        self._cursor: str | None = None
        self._begun: dict[int, int] = {}
        self._inner: dict[int, int] = {}
        self._continued: set[int] = set()
        self._about: dict[str, str] = {}

    @property
    def kind(self) -> Kind:
        return self.ref.kind

    @property
    def over(self) -> bool:
        """Whether nothing moves it any more."""
        return self.kind.flow.state(self.flow["state"]).final

    @property
    def failed(self) -> bool:
        """Whether it has failed for now; a workstream may wait for somebody who mends it."""
        return self.flow["state"] in _leading(self.kind.flow, Verb.FAIL)

    @property
    def succeeded(self) -> bool:
        return self.flow["state"] in _leading(self.kind.flow, Verb.SUCCEED)

    def phase(self, step: Row) -> Phase:
        return phases(self.kind.step)[step["state"]]

    def kind_of(self, step: Row) -> str:
        """What a step of its own does, as the definition has it."""
        return self._shape.steps[step["name"]].kind

    def about(self, step: Row) -> str:
        """The same in a few words."""
        return self._about[step["name"]]

    def in_phase(self, *wanted: Phase) -> list[Row]:
        """Its own steps that are so far, in order."""
        return [step for step in self.steps.values() if self.phase(step) in wanted]

    def inside(self, step: Row) -> Inside | None:
        """How much of what is inside a step is done; none where there is nothing inside."""
        within = self.within.get(step["id"], {}).values()
        rows = [row for row in within if row["flow_id"] not in self._continued]
        if not rows:
            return None
        counted = [row for row in rows if row["parent_id"] == step["id"]] or rows  # elements may be flows themselves
        return Inside(sum(_phase(row) is Phase.SATISFIED for row in counted), len(counted))

    def at_work(self, step: Row) -> list[Row]:
        """What runs of a step: itself, or what is inside it."""
        rows = self.within.get(step["id"]) or {step["id"]: step}
        return [row for row in rows.values() if _phase(row) is Phase.ACTIVE]

    # --- reading

    async def ended(self) -> bool:
        """Whether nothing more happens by itself: it is over, or has failed and nothing of it runs any more."""
        await self._look_at_flow()
        return self.over or (self.failed and not await self.jobs())

    async def look(self) -> list[Row]:
        """Reads what is new; returns its own steps that have moved."""
        if not self.steps:
            await self._begin()
        moved: dict[int, Row] = {}
        while True:
            page = await self._store.events(self._wanted, after=self._cursor, limit=PAGE)
            self._begun |= beginnings(page)
            moved |= await self._take({event.entity_id for event in page if event.entity in STEPS})
            self.events += len(page)
            if page:
                self._cursor = page[-1].cursor
            if len(page) < PAGE:
                break
        await self._look_at_flow()
        return _as_they_moved(moved.values())

    async def look_at_all(self) -> list[Row]:
        """Reads every step of its own anew, and returns them: the log may lag behind what was written."""
        self._sort(await self._store.steps(self.ref.id))
        await self._look_at_flow()
        return _as_they_moved(self.steps.values())

    @property
    def _wanted(self) -> EventFilter:
        return EventFilter(tenant_id=self.tenant_id, correlation_id=self.flow["correlation_id"] or self.ref.public_id)

    async def _begin(self) -> None:
        await self._look_at_flow()
        whole = await shape(self._store, self.tenant_id, self.flow["template_id"])
        self.definition, self._shape = whole.flow, whole
        self._about = await described(self._store, self.tenant_id, whole.flow)
        self._sort(await self._store.steps(self.ref.id))

    async def _look_at_flow(self) -> None:
        (self.flow,) = await self._store.rows(self.kind.flow, [self.ref.id])
        self.now = await self._store.now()

    def _sort(self, rows: Iterable[Row]) -> None:
        for row in rows:
            within = self.steps if row["parent_id"] is None else self.within.setdefault(row["parent_id"], {})
            within[row["id"]] = in_last_round(row, self._begun)

    async def _take(self, ids: set[int]) -> Mapping[int, Row]:
        rows = await self._store.steps_by_key(sorted(ids)) if ids else []
        own = {row["id"]: row for row in rows if row["flow_id"] == self.ref.id}
        self._sort(own.values())
        for row in rows:
            if row["flow_id"] != self.ref.id and (around := await self._step_around(row)) is not None:
                self.within.setdefault(around, {})[row["id"]] = row
        return {id: self.steps[id] for id, row in own.items() if row["parent_id"] is None}

    async def _step_around(self, row: Row) -> int | None:
        """The step of this flow that a step of a flow inside it belongs to; elements in there are left out."""
        if row["parent_id"] is not None:
            return None
        if row["flow_id"] not in self._inner:
            self._inner[row["flow_id"]] = await self._found_around(row)
        return self._inner[row["flow_id"]] or None

    async def _found_around(self, row: Row) -> int:
        """By the steps around, from the inside out; 0 if it belongs to none of this flow's."""
        while row["flow_id"] != self.ref.id:
            found = await self._store.rows(_kind(row).flow, [row["flow_id"]], ("step_id", "forked_from", "resumes"))
            self._continued |= {one["forked_from"] for one in found if one["resumes"]}
            rows = await self._store.steps_by_key([found[0]["step_id"]]) if found and found[0]["step_id"] else []
            if not rows:
                return 0
            row = rows[0]
        return int(row["parent_id"] or row["id"])

    async def listen(self) -> None:
        """Reads what the steps that run have said last of how far they are; of very many, the first."""
        heard: dict[int, str] = {}
        for step in self.in_phase(Phase.ACTIVE)[:MOST_HEARD]:
            for row in self.at_work(step)[:1]:
                told = await said(self._store, self.tenant_id, row["job_id"]) if row["job_id"] else None
                if told is not None:
                    heard[step["id"]] = told_as_text(told)
        self.said = heard

    # --- what it waits for

    async def questions(self) -> list[Approval]:
        """What is asked of people now, by its steps, by those inside them, and by jobs that carry them out; each under
        the name of its step."""
        asking = [row for row in self._everywhere if _phase(row) is Phase.ACTIVE and row["job_id"] is None]
        gates = [await self._store.gate(self.tenant_id, row["id"]) for row in asking]
        found = [gate for gate in gates if gate is not None and gate.decision is None]
        waiting = [job for job in await self.jobs() if (job["waits_for"] or "").startswith(APPROVAL)]
        return found + await asked_by(self._store, self.tenant_id, {job["id"]: self.name_of(job) for job in waiting})

    async def awaits_operator(self) -> bool:
        """Return whether a flow inside it has failed and stays so until an operator retries it."""
        inside = {row["flow_id"]: _kind(row).flow for row in self._everywhere if _phase(row) is Phase.FAILED}
        rows = [(kind, row) for id, kind in inside.items() for row in await self._store.rows(kind, [id], ("state",))]
        return any(
            row["state"] in _leading(kind, Verb.FAIL) and not kind.state(row["state"]).final for kind, row in rows
        )

    def name_of(self, job: Mapping[str, Any]) -> str:
        """What the step is called that a job carries out."""
        return next((str(row["name"]) for row in self._everywhere if row["id"] == job["step_id"]), "a step")

    @property
    def _everywhere(self) -> list[Row]:
        return [*self.steps.values(), *(row for rows in self.within.values() for row in rows.values())]

    async def jobs(self) -> list[dict[str, Any]]:
        """The jobs that still work for it, and what they wait for."""
        keys = [job.id for job in await self._store.unfinished_jobs(self.flow["tree_id"] or self.ref.id)]
        return await self._store.rows(JOB, keys, OF_JOBS) if keys else []

    async def held(self, jobs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Those of these jobs that something holds back: what it is and what can be done, by the names of their
        steps."""
        found: dict[str, str] = {}
        for job in jobs:
            if job["held_by"] is not None and job["state"] == QUEUED.name:
                _, reasons = await why(self._store, self.tenant_id, public_id(JOB.name, job["id"]))
                todo = f"; {reasons[0].todo}" if reasons[0].todo else ""
                found[self.name_of(job)] = f"{reasons[0].says}{todo}"
        return found


async def described(store: Reader, tenant_id: int, flow: Flow) -> dict[str, str]:
    """What each step of a flow does, in a few words; flows inside it are called by their names."""
    called: dict[str, str] = {}
    for name in {step.flow for step in flow.steps}:
        if name is not None and (key := ids.key_of(name)) is not None:  # it was read from a file
            called[name] = (await shape(store, tenant_id, key[1])).flow.name
    return {
        step.id: about(
            step if step.flow is None else step.model_copy(update={"flow": called.get(step.flow, step.flow)})
        )
        for step in flow.steps
    }


def _as_they_moved(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["updated_at"], row["position"]))


def told_as_text(told: Said) -> str:
    """What a step said, in a line.

    >>> told_as_text(Said(0.5, "page 2", 0)), told_as_text(Said(0.0, "compiling", 0))
    ('50 % page 2', 'compiling')
    """
    return f"{told.fraction * 100:.0f} % {told.text}".rstrip() if told.fraction else told.text


def _leading(lifecycle: Lifecycle, verb: Verb) -> set[str]:
    return {move.target.name for move in lifecycle.moves if move.verb is verb}


def _kind(row: Row) -> Kind:
    return KINDS["run" if row["lifecycle"] == RUN_STEP.name else "workstream"]


def _phase(row: Row) -> Phase:
    return phases(_kind(row).step)[row["state"]]

"""A flow in progress: its steps, updated from the event log.

Each update reads the flow, its new events, and the rows of the steps that moved. The items of a `for_each` step and the
steps of a nested flow count for that step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, RUN_STEP, WORKSTREAM_STEP, Lifecycle, Verb
from keptwork.core.lifecycles.job import QUEUED
from keptwork.diagnostics.why_jobs import why
from keptwork.flows import eta
from keptwork.flows.approvals import asked_by
from keptwork.flows.commands import FlowRef, row_of
from keptwork.flows.compiled import KINDS, Kind, shape
from keptwork.flows.definition import Flow
from keptwork.flows.eta import beginnings, in_last_round, shown
from keptwork.flows.graph import about
from keptwork.flows.plan import Phase, Shape, phases
from keptwork.flows.transaction import Row
from keptwork.jobs.queries import Said, said, said_as_json
from keptwork.store import Store
from keptwork.store.contract.records import EventFilter
from keptwork.store.contract.store import Reader
from keptwork.store.contract.waits import APPROVAL
from keptwork.store.contract.waits_approvals import Approval

PAGE = 1_000
MOST_HEARD = 20
STEPS = (RUN_STEP.name, WORKSTREAM_STEP.name)
OF_JOBS = (
    "id", "state", "step_id", "held_by", "waits_for", "run_at", "owner", "attempts", "max_attempts", "lease_until",
)  # fmt: skip


class Inside(NamedTuple):
    """How many parts of a step are done, such as its items."""

    done: int
    total: int


class FlowView:
    """A flow with its own steps by key, in order.

    Each step has the start of its last round (see eta.py). `said` has the last progress report of running
    steps. `look` updates everything except `said`, and `listen` updates `said`.
    """

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
        """Whether the flow has finished."""
        return self.kind.flow.state(self.flow["state"]).final

    @property
    def failed(self) -> bool:
        """Whether the flow has failed for now. A workstream can wait for an operator who repairs it."""
        return self.flow["state"] in _leading(self.kind.flow, Verb.FAIL)

    @property
    def succeeded(self) -> bool:
        return self.flow["state"] in _leading(self.kind.flow, Verb.SUCCEED)

    def phase(self, step: Row) -> Phase:
        return phases(self.kind.step)[step["state"]]

    def kind_of(self, step: Row) -> str:
        """Return the kind of a step, from the definition."""
        return self._shape.steps[step["name"]].kind

    def about(self, step: Row) -> str:
        """Return a short description of a step."""
        return self._about[step["name"]]

    def in_phase(self, *wanted: Phase) -> list[Row]:
        """Return the flow's own steps in these phases, in order."""
        return [step for step in self.steps.values() if self.phase(step) in wanted]

    def inside(self, step: Row) -> Inside | None:
        """Return how many parts of a step are done, or None if it has no parts."""
        within = self.within.get(step["id"], {}).values()
        rows = [row for row in within if row["flow_id"] not in self._continued]
        if not rows:
            return None
        counted = [row for row in rows if row["parent_id"] == step["id"]] or rows  # items can be flows themselves
        return Inside(sum(_phase(row) is Phase.SATISFIED for row in counted), len(counted))

    def at_work(self, step: Row) -> list[Row]:
        """Return the running rows of a step: the step, or its parts."""
        rows = self.within.get(step["id"]) or {step["id"]: step}
        return [row for row in rows.values() if _phase(row) is Phase.ACTIVE]

    # --- reading

    async def ended(self) -> bool:
        """Return whether nothing more happens automatically.

        The flow has finished, or it has failed and no job works for it.
        """
        await self._look_at_flow()
        return self.over or (self.failed and not await self.jobs())

    async def look(self) -> list[Row]:
        """Read the updates, and return the flow's own steps that have moved."""
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
        """Read all own steps of the flow again and return them.

        The log can lag behind the rows.
        """
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
        """Return the step of this flow that contains a step of a nested flow.

        Items inside nested flows are left out.
        """
        if row["parent_id"] is not None:
            return None
        if row["flow_id"] not in self._inner:
            self._inner[row["flow_id"]] = await self._found_around(row)
        return self._inner[row["flow_id"]] or None

    async def _found_around(self, row: Row) -> int:
        """Return the containing step, found from the inside out, or 0 if it is not in this flow."""
        while row["flow_id"] != self.ref.id:
            found = await self._store.rows(_kind(row).flow, [row["flow_id"]], ("step_id", "forked_from", "resumes"))
            self._continued |= {one["forked_from"] for one in found if one["resumes"]}
            rows = await self._store.steps_by_key([found[0]["step_id"]]) if found and found[0]["step_id"] else []
            if not rows:
                return 0
            row = rows[0]
        return int(row["parent_id"] or row["id"])

    async def listen(self) -> None:
        """Read the last progress reports of running steps, at most of the first of very many."""
        heard: dict[int, str] = {}
        for step in self.in_phase(Phase.ACTIVE)[:MOST_HEARD]:
            for row in self.at_work(step)[:1]:
                told = await said(self._store, self.tenant_id, row["job_id"]) if row["job_id"] else None
                if told is not None:
                    heard[step["id"]] = told_as_text(told)
        self.said = heard

    # --- what it waits for

    async def questions(self) -> list[Approval]:
        """Return the open approval requests of steps, at any depth, and of their jobs.

        Each has the name of its step.
        """
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
        """Return the name of the step that a job runs."""
        return next((str(row["name"]) for row in self._everywhere if row["id"] == job["step_id"]), "a step")

    @property
    def _everywhere(self) -> list[Row]:
        return [*self.steps.values(), *(row for rows in self.within.values() for row in rows.values())]

    async def jobs(self) -> list[dict[str, Any]]:
        """Return the unfinished jobs of the flow, with their waits."""
        keys = [job.id for job in await self._store.unfinished_jobs(self.flow["tree_id"] or self.ref.id)]
        return await self._store.rows(JOB, keys, OF_JOBS) if keys else []

    async def held(self, jobs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return the causes of held jobs with what can be done, by the names of their steps."""
        found: dict[str, str] = {}
        for job in jobs:
            if job["held_by"] is not None and job["state"] == QUEUED.name:
                _, reasons = await why(self._store, self.tenant_id, public_id(JOB.name, job["id"]))
                todo = f"; {reasons[0].todo}" if reasons[0].todo else ""
                found[self.name_of(job)] = f"{reasons[0].says}{todo}"
        return found


async def described(store: Reader, tenant_id: int, flow: Flow) -> dict[str, str]:
    """Return a short description of each step of a flow. Nested flows appear by name."""
    called: dict[str, str] = {}
    for name in {step.flow for step in flow.steps}:
        if name is not None and (key := ids.key_of(name)) is not None:  # the step names a stored template
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
    """Return a progress report as one line.

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


# Read the progress of a flow once, without a `FlowView`.


class Running(NamedTuple):
    """A running step and its last progress report."""

    step: Row
    said: Said | None


class FlowProgress(NamedTuple):
    """The number of steps by phase, and the running steps, at most the first of very many. Times are in µs."""

    counts: Counter[Phase]
    running: list[Running]
    elapsed_us: int
    left_us: float | None


async def counted(store: Reader, ref: FlowRef) -> Counter[Phase]:
    """Return the number of steps by phase, for lists of flows."""
    found: Counter[Phase] = Counter()
    for state, count in (await store.step_counts(ref.id)).items():
        found[phases(ref.kind.step)[state]] += count
    return found


async def read(store: Store, ref: FlowRef) -> FlowProgress:
    """Return the progress of a flow.

    The time left is estimated from earlier flows of the same name, assuming enough workers.
    """
    flow = await row_of(store, ref)
    steps = [row for row in await shown(store, flow, await store.steps(ref.id)) if row["parent_id"] is None]
    meaning, now = phases(ref.kind.step), await store.now()
    active = [row for row in steps if meaning[row["state"]] is Phase.ACTIVE]
    heard = [
        Running(row, await said(store, flow["tenant_id"], row["job_id"]) if row["job_id"] else None)
        for row in active[:MOST_HEARD]
    ]
    elapsed = (flow["completed_at"] or now) - flow["created_at"]
    return FlowProgress(
        Counter(meaning[row["state"]] for row in steps), heard, elapsed, await _left(store, ref, flow, steps, now)
    )


async def _left(store: Store, ref: FlowRef, flow: Row, steps: list[Row], now: int) -> float | None:
    if flow["completed_at"] is not None:
        return 0.0
    usual = await eta.usual_times(store, ref.kind, flow["name"], flow["tenant_id"])
    if not usual:
        return None
    whole = await shape(store, flow["tenant_id"], flow["template_id"])
    return eta.time_left(whole.flow, ref.kind, steps, usual, now, at_once=len(steps))


def as_json(found: FlowProgress) -> dict[str, Any]:
    """Return progress in its public form."""
    return {
        "total": found.counts.total(),
        "done": found.counts[Phase.SATISFIED],
        "running": found.counts[Phase.ACTIVE],
        "waiting": found.counts[Phase.WAITING],
        "failed": found.counts[Phase.FAILED],
        "cancelled": found.counts[Phase.GONE],
        "now": [_running(one) for one in found.running],
        "elapsed_seconds": found.elapsed_us / 1_000_000,
        "expected_left_seconds": None if found.left_us is None else found.left_us / 1_000_000,
    }


def _running(one: Running) -> dict[str, Any]:
    begun = one.step["started_at"]
    return {
        "id": public_id(one.step["lifecycle"], one.step["id"]),
        "name": one.step["name"],
        "started_at": None if begun is None else rfc3339(begun),
        "said": said_as_json(one.said),
    }

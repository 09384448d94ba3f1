"""Says what is wrong with flows, from the event log and the definitions alone: it knows nothing of the engine's plan.

Events are replayed in the order of the log. What each must find when it comes:

- a step begins after everything it depends on is done, while its flow neither failed nor ended
- an element begins while its step runs, and no more of them run than may
- a job is made for a step that a worker carries out, while the flow goes on and no other job works for the step
- a step has one job in a round that ever began
- a flow ends well when each of its steps did
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from keptwork.core.lifecycles import JOB, LIFECYCLES
from keptwork.flows.compiled import KINDS, shape
from keptwork.flows.definition import Flow, Step
from keptwork.flows.plan import Phase, phases
from keptwork.store import Store
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.records import Event, EventFilter

PAGE = 1_000
BEGINNING = ("dependencies_met", "claim", "open_gate")
FLOWS = tuple(kind.flow.name for kind in KINDS.values())
STEPS = tuple(kind.step.name for kind in KINDS.values())


class Known(NamedTuple):
    """What there is, by key; jobs by the step they work for."""

    flows: dict[int, dict[str, Any]]
    definitions: dict[int, Flow]
    steps: dict[int, dict[str, Any]]
    jobs: dict[int, int]
    gates: dict[int, list[str | None]]
    working: set[int]
    log: list[Event]


async def known(store: Store) -> Known:
    """Everything of the default tenant, read once nothing moves any longer."""
    flows: dict[int, dict[str, Any]] = {}
    for kind in KINDS.values():
        after = None
        while page := await store.flows(kind.flow, FlowFilter(inside=True), after=after, limit=PAGE):
            flows |= {row["id"]: {**row, "kind": kind.name} for row in page}
            after = page[-1]["id"]
    definitions = {id: (await shape(store, row["tenant_id"], row["template_id"])).flow for id, row in flows.items()}
    steps = {step["id"]: step for id in flows for step in await store.steps(id)}
    rows = [row async for row in _jobs(store)]
    jobs = {row["id"]: row["step_id"] for row in rows if row["step_id"] is not None}
    working = {row["step_id"] for row in rows if row["completed_at"] is None}
    gates: dict[int, list[str | None]] = {}
    for gate in await store.approvals(1, open_only=False, limit=1_000_000):
        gates.setdefault(gate.step_id or 0, []).append(gate.decision)
    return Known(flows, definitions, steps, jobs, gates, working, [event async for event in _events(store)])


async def _events(store: Store) -> Any:
    after = None
    while page := await store.events(EventFilter(), after=after, limit=PAGE):
        for event in page:
            yield event
        after = page[-1].cursor


async def _jobs(store: Store) -> Any:
    after = None
    while page := await store.jobs(
        after=after, limit=PAGE, newest_first=False, columns=("id", "step_id", "completed_at")
    ):
        for row in page:
            yield row
        after = page[-1]["id"]


def faults(all: Known) -> list[str]:
    """What is wrong; nothing, if all is well."""
    return [*Replay(all).faults(), *_left(all)]


class Replay:
    """The log gone through once."""

    def __init__(self, all: Known) -> None:
        self._all = all
        self._state: dict[int, str] = {}
        self._round: dict[int, int] = {}
        self._began: dict[tuple[int, int], set[int]] = {}
        self._jobs: dict[int, set[int]] = {}
        self._failed_at_once = _failed_at_once(all.log)
        self._elements: dict[int, list[int]] = {}
        for id, step in all.steps.items():
            if step["parent_id"] is not None:
                self._elements.setdefault(step["parent_id"], []).append(id)
        self._own: dict[int, dict[str, int]] = {}
        for id, step in all.steps.items():
            if step["parent_id"] is None:
                self._own.setdefault(step["flow_id"], {})[step["name"]] = id

    def faults(self) -> Iterator[str]:
        for place, event in enumerate(self._all.log):
            id = event.entity_id
            if event.entity in STEPS:
                yield from self._step(place, event)
            elif event.entity == JOB.name and id in self._all.jobs:
                yield from self._job(event)
            elif event.entity in FLOWS:
                yield from self._flow(event)
            self._state[id] = event.to_state

    def _phase(self, id: int) -> Phase:
        lifecycle = LIFECYCLES[self._all.steps[id]["lifecycle"]]
        return phases(lifecycle)[self._state.get(id, lifecycle.initial.name)]

    def _goes_on(self, flow: int) -> bool:
        """Whether something of it may begin: it has neither failed nor ended."""
        kind = KINDS[self._all.flows[flow]["kind"]].flow
        state = self._state.get(flow, kind.initial.name)
        return not kind.state(state).final and state not in ("S_FAILED", "S_RETRYING")

    def _step(self, place: int, event: Event) -> Iterator[str]:
        step = self._all.steps[event.entity_id]
        name = f"{step['name']} of {step['flow_id']}"
        if event.trigger == "reset":
            self._round[step["id"]] = self._round.get(step["id"], 0) + 1
        if event.trigger not in BEGINNING:
            return
        if place not in self._failed_at_once and not self._goes_on(step["flow_id"]):
            yield f"{name} began when its flow was {self._state.get(step['flow_id'])}"
        yield from self._element(step, name) if step["parent_id"] is not None else self._after(step, name)

    def _after(self, step: dict[str, Any], name: str) -> Iterator[str]:
        flow = self._all.definitions[step["flow_id"]]
        for earlier in flow.dependencies[step["name"]]:
            if self._phase(self._own[step["flow_id"]][earlier]) is not Phase.SATISFIED:
                yield f"{name} began before {earlier} was done"

    def _element(self, step: dict[str, Any], name: str) -> Iterator[str]:
        parent = step["parent_id"]
        if self._phase(parent) is not Phase.ACTIVE:
            yield f"{name} began when its step was {self._state.get(parent)}"
        for_each = _defined(self._all, step).for_each
        others = sum(self._phase(one) is Phase.ACTIVE for one in self._elements[parent] if one != step["id"])
        if for_each is None or others >= for_each.limit:
            yield f"{name} began beside {others} others"

    def _job(self, event: Event) -> Iterator[str]:
        step = self._all.steps[self._all.jobs[event.entity_id]]
        name, working = f"{step['name']} of {step['flow_id']}", self._jobs.setdefault(step["id"], set())
        if event.trigger == "enqueue":
            if working:
                yield f"{name} got a second job"
            if not self._goes_on(step["flow_id"]):
                yield f"{name} got a job when its flow was {self._state.get(step['flow_id'])}"
            if _defined(self._all, step).kind not in ("call", "tool", "command", "agent"):
                yield f"{name} got a job, and is no step for a worker"
            working.add(event.entity_id)
        elif event.trigger == "start":
            began = self._began.setdefault((step["id"], self._round.get(step["id"], 0)), set())
            began.add(event.entity_id)
            if len(began) > 1:
                yield f"{name} ran under {len(began)} jobs in one round"
        if JOB.state(event.to_state).final:
            working.discard(event.entity_id)

    def _flow(self, event: Event) -> Iterator[str]:
        if event.trigger in ("all_steps_succeed", "succeed"):
            for name, id in self._own[event.entity_id].items():
                if self._phase(id) is not Phase.SATISFIED:
                    yield f"flow {event.entity_id} ended well while {name} was {self._state.get(id)}"


def _failed_at_once(log: Sequence[Event]) -> set[int]:
    """Beginnings that were made only for a step to fail, without a worker: its job was cancelled before it began, or it
    could not begin."""
    found, last = set(), dict[int, tuple[int, Event]]()
    for place, event in enumerate(log):
        if event.entity not in STEPS:
            continue
        before = last.get(event.entity_id)
        failed = before is not None and before[1].trigger in BEGINNING and event.trigger in ("fail", "failure")
        if before is not None and failed and before[1].actor == event.actor and before[1].ts + 1 >= event.ts:
            found.add(before[0])
        last[event.entity_id] = (place, event)
    return found


def _defined(all: Known, step: dict[str, Any]) -> Step:
    name = str(step["name"]).partition("[")[0]
    return next(one for one in all.definitions[step["flow_id"]].steps if one.id == name)


def _left(all: Known) -> Iterator[str]:
    """What rows say at last: states of flows and of their steps agree, and each flow ended or waits for something."""
    inner = {row["step_id"]: id for id, row in all.flows.items() if row["step_id"] is not None}
    by_flow: dict[int, list[dict[str, Any]]] = {}
    for step in all.steps.values():
        by_flow.setdefault(step["flow_id"], []).append(step)
    for id, flow in all.flows.items():
        kind, steps = KINDS[flow["kind"]], by_flow[id]
        own = [phases(kind.step)[step["state"]] for step in steps if step["parent_id"] is None]
        if kind.flow.state(flow["state"]).final:
            yield from _ended(all, id, flow, steps, own)
        elif flow["state"] in ("S_FAILED", "S_RETRYING"):
            if flow["wake_at"] is None:
                yield f"flow {id} is {flow['state']}, and no time is set at which it goes on"
            if flow["state"] == "S_FAILED" and Phase.FAILED not in own:
                yield f"flow {id} is S_FAILED, and none of its steps is"
        elif flow["held_at"] is None and not any(_waits(all, step, inner) for step in steps):
            yield f"flow {id} is {flow['state']}, and waits for nothing"


def _ended(all: Known, id: int, flow: dict[str, Any], steps: list[dict[str, Any]], own: list[Phase]) -> Iterator[str]:
    if flow["state"] in ("S_SUCCESS", "SUCCEEDED"):
        if set(own) != {Phase.SATISFIED}:
            yield f"flow {id} is {flow['state']}, its steps are {sorted({one.name for one in own})}"
    elif {Phase.WAITING, Phase.ACTIVE} & set(own):
        yield f"flow {id} is {flow['state']}, and some of its steps have not ended"
    if flow["wake_at"] is not None:
        yield f"flow {id} is {flow['state']}, and time would move it"
    for step in steps:
        if step["id"] in all.working:
            yield f"flow {id} is {flow['state']}, and a job works for {step['name']}"
        if None in all.gates.get(step["id"], []):
            yield f"flow {id} is {flow['state']}, and {step['name']} asks somebody"


def _waits(all: Known, step: dict[str, Any], inner: dict[int, int]) -> bool:
    """Whether the step has a job, an open question or a flow that has not ended."""
    if step["id"] in all.working or None in all.gates.get(step["id"], []):
        return True
    flow = all.flows.get(inner.get(step["id"], 0))
    return flow is not None and flow["completed_at"] is None

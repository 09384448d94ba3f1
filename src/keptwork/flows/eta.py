"""Estimate how long a flow will still take, from successful flows of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import WORKSTREAM, WORKSTREAM_STEP, Verb
from keptwork.flows import graph
from keptwork.flows.compiled import Kind
from keptwork.flows.definition import Flow
from keptwork.flows.plan import Phase, phases
from keptwork.flows.transaction import Row
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.records import Event, EventFilter
from keptwork.store.contract.store import Reader

# Steps as they are shown: with the start of their last round and the attempts of items.
#
# A row has the time when its step first started. A failed workstream step that is reset starts again, in another round;
# the log has that time. The row of a `for_each` step has no attempts of its own.


PAGE = 1_000
BEGINS = next(move.event for move in WORKSTREAM_STEP.moves if move.verb is Verb.START)
"""The event that starts a round of a step. A retry within the round has another event."""


async def shown(store: Reader, flow: Row, rows: Iterable[Row]) -> list[Row]:
    """Return the steps of a flow as they are shown. A `for_each` step has the most attempts of any item."""
    tries: dict[int, int] = {}
    found = list(rows)
    for row in found:
        if row["parent_id"] is not None:
            tries[row["parent_id"]] = max(tries.get(row["parent_id"], 0), row["attempts"])
    begun = await _begun(store, flow) if flow.get("retry_count") else {}
    return [in_last_round({**row, "attempts": row["attempts"] or tries.get(row["id"], 0)}, begun) for row in found]


async def one_shown(store: Reader, flow: Row, row: Row) -> Row:
    """Return a single step as it is shown."""
    elements = [] if row["job_id"] else await store.steps(row["flow_id"], parent=row["id"])
    return (await shown(store, flow, [row, *elements]))[0]


def in_last_round(row: Row, begun: Mapping[int, int]) -> Row:
    """Return a step with the start of its last round, if known.

    A step that waits to start has none.
    """
    if row["lifecycle"] != WORKSTREAM_STEP.name or row["started_at"] is None:
        return row
    waits = phases(WORKSTREAM_STEP)[row["state"]] is Phase.WAITING
    return {**row, "started_at": None if waits else begun.get(row["id"], row["started_at"])}


def beginnings(events: Iterable[Event]) -> dict[int, int]:
    """Return when steps last started, by key, from the events of their moves."""
    return {event.entity_id: event.ts for event in events if event.type == BEGINS}


async def _begun(store: Reader, flow: Row) -> dict[int, int]:
    """Return when the steps of a workstream and its parent flows last started.

    Steps that never started again do not need it, because their rows have the time.
    """
    tree = flow["correlation_id"] or public_id(WORKSTREAM.name, flow["id"])
    wanted = EventFilter(flow["tenant_id"], entity=WORKSTREAM_STEP.name, type=BEGINS, correlation_id=tree)
    found: dict[int, int] = {}
    page = await store.events(wanted, limit=PAGE)
    while page:
        found |= beginnings(page)
        page = await store.events(wanted, after=page[-1].cursor, limit=PAGE) if len(page) == PAGE else []
    return found


FLOWS_LOOKED_AT = 5

UsualTimes = Mapping[str, float]
"""Median duration of each step in µs, by name."""


async def usual_times(store: Reader, kind: Kind, name: str, tenant_id: int) -> UsualTimes:
    """Return the median durations of steps over the last successful flows of this name.

    It is empty if there are none.
    """
    won = tuple({move.target.name for move in kind.flow.moves if move.verb is Verb.SUCCEED})
    wanted = FlowFilter(tenant_id=tenant_id, states=won, name=name)
    rows: list[Row] = []
    for flow in await store.flows(kind.flow, wanted, limit=FLOWS_LOOKED_AT):
        rows += await shown(store, flow, await store.steps(flow["id"]))
    return medians(kind, rows)


def medians(kind: Kind, rows: Iterable[Row]) -> UsualTimes:
    """Return the median durations of the satisfied steps. A skipped step took no time."""
    found: dict[str, list[int]] = {}
    for row in rows:
        if row["parent_id"] is None and phases(kind.step)[row["state"]] is Phase.SATISFIED:
            found.setdefault(row["name"], []).append(_took(row))
    return {name: median(times) for name, times in found.items()}


def _took(row: Row) -> int:
    begun = row["started_at"]
    return 0 if begun is None or row["completed_at"] is None else int(row["completed_at"] - begun)


def time_left(flow: Flow, kind: Kind, steps: Iterable[Row], usual: UsualTimes, now: int, at_once: int) -> float | None:
    """Return the estimated time left in µs, or None if a remaining step has no known duration.

    It is the longest path through the remaining steps, and at least their sum divided by `at_once`. Time for approvals
    is not counted.
    """
    rows = {row["name"]: row for row in steps}
    asked = {step.id for step in flow.steps if step.kind == "approval"}
    left: dict[str, float] = {}
    for name, row in rows.items():
        phase = phases(kind.step)[row["state"]]
        if phase not in (Phase.WAITING, Phase.ACTIVE) or name in asked:
            left[name] = 0.0
        elif name not in usual:
            return None
        else:
            left[name] = _still(row, phase, usual[name], now)
    return max(_longest(flow, left), sum(left.values()) / at_once)


def _still(row: Row, phase: Phase, usually: float, now: int) -> float:
    begun = row["started_at"] if phase is Phase.ACTIVE else None
    return usually if begun is None else max(0.0, usually - (now - begun))


def _longest(flow: Flow, left: Mapping[str, float]) -> float:
    ends: dict[str, float] = {}
    before = flow.dependencies
    for level in graph.levels(before):
        for name in level:
            ends[name] = left.get(name, 0.0) + max((ends[one] for one in before[name]), default=0.0)
    return max(ends.values(), default=0.0)

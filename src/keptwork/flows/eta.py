"""Estimate how long a flow will still take, from successful flows of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from keptwork.core.lifecycles import Verb
from keptwork.flows import graph
from keptwork.flows.compiled import Kind
from keptwork.flows.definition import Flow
from keptwork.flows.eta_shown_steps import shown
from keptwork.flows.plan_phase import Phase, phases
from keptwork.flows.transaction import Row
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.store import Reader

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

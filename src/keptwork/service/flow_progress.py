"""How far a flow has come: for whoever looks once, and keeps no view of it."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from keptwork.flow.phase import Phase, phases
from keptwork.moments import rfc3339
from keptwork.service import progress
from keptwork.service.definitions import shape
from keptwork.service.entities import public_id
from keptwork.service.flow_scene import Row
from keptwork.service.flow_view import MOST_HEARD
from keptwork.service.flows import FlowRef, row_of
from keptwork.service.job_steps import Said, said, said_as_json
from keptwork.service.shown_steps import shown
from keptwork.store import Store
from keptwork.store.protocol import Reader


class Running(NamedTuple):
    """A step that runs, and what it has said last of how far it is."""

    step: Row
    said: Said | None


class FlowProgress(NamedTuple):
    """How many of its own steps are how far; those that run, of very many the first. Times are microseconds."""

    counts: Counter[Phase]
    running: list[Running]
    elapsed_us: int
    left_us: float | None


async def counted(store: Reader, ref: FlowRef) -> Counter[Phase]:
    """How many of its own steps are how far, and nothing else: for lists of flows."""
    found: Counter[Phase] = Counter()
    for state, count in (await store.step_counts(ref.id)).items():
        found[phases(ref.kind.step)[state]] += count
    return found


async def read(store: Store, ref: FlowRef) -> FlowProgress:
    """How far a flow is now. What is left is expected by what flows of its name took before, given workers enough."""
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
    usual = await progress.usual_times(store, ref.kind, flow["name"], flow["tenant_id"])
    if not usual:
        return None
    whole = await shape(store, flow["tenant_id"], flow["template_id"])
    return progress.time_left(whole.flow, ref.kind, steps, usual, now, at_once=len(steps))


def as_json(found: FlowProgress) -> dict[str, Any]:
    """As it is read outside."""
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

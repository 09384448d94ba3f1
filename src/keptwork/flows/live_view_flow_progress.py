"""Read the progress of a flow once, without a `FlowView`."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from keptwork.core.durations import rfc3339
from keptwork.core.ids_entities import public_id
from keptwork.flows import eta
from keptwork.flows.commands import FlowRef, row_of
from keptwork.flows.compiled import shape
from keptwork.flows.eta_shown_steps import shown
from keptwork.flows.live_view import MOST_HEARD
from keptwork.flows.plan_phase import Phase, phases
from keptwork.flows.transaction import Row
from keptwork.jobs.queries_job_steps import Said, said, said_as_json
from keptwork.store import Store
from keptwork.store.contract.store import Reader


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

"""Workstreams that have ended, many of them, made by their own moves but without jobs."""

from __future__ import annotations

from keptwork.core.lifecycles import WORKSTREAM, WORKSTREAM_STEP, Lifecycle, decide, insist
from keptwork.store import Store, Transaction

AT_ONCE = 50


async def ended_flows(store: Store, count: int, steps: int) -> None:
    """So many, each with so many steps that succeeded."""
    for first in range(0, count, AT_ONCE):
        number = min(AT_ONCE, count - first)
        await store.atomically(lambda tx, number=number: _made(tx, number, steps))  # type: ignore[misc]


async def _made(tx: Transaction, count: int, steps: int) -> None:
    flows = [await tx.create(WORKSTREAM, name="release", inputs="{}") for _ in range(count)]
    rows = [{"flow_id": flow, "name": f"s{place}", "position": place} for flow in flows for place in range(steps)]
    made = await tx.create_many(WORKSTREAM_STEP, rows)
    await _move(tx, WORKSTREAM, flows, "start_execution")
    await _move(tx, WORKSTREAM_STEP, made, "dependencies_met")
    await _move(tx, WORKSTREAM_STEP, made, "success", output="{}", output_hash=None, cost_micros=None)
    await _move(tx, WORKSTREAM, flows, "all_steps_succeed", wake_at=None)


async def _move(tx: Transaction, lifecycle: Lifecycle, ids: list[int], trigger: str, **values: object) -> None:
    rows = await tx.rows(lifecycle, ids)
    changes = [insist(decide(lifecycle, row, trigger, values=values, dependencies_met=True)) for row in rows]
    assert await tx.apply(changes) == []

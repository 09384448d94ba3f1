"""Flows carried out by a worker in this process, and what tests read of them afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from keptwork import Keptwork
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.store import Store


class Ran(NamedTuple):
    """A flow after its worker went idle: its steps by name, and their outputs."""

    store: Store
    ref: flows.FlowRef
    flow: dict[str, Any]
    steps: dict[str, dict[str, Any]]
    outputs: dict[str, Any]

    @property
    def states(self) -> dict[str, str]:
        return {name: step["state"] for name, step in self.steps.items()}


def given(**said: Any) -> dict[str, Any]:
    """Return the arguments: a function that steps call."""
    return said


def returning(id: str, *after: str, **said: Any) -> dict[str, Any]:
    """Return a step that calls a function which returns these values."""
    return {"id": id, "call": f"{__name__}:given", "with": said, "depends_on": list(after)}


def flow_of(*steps: dict[str, Any], **more: Any) -> Flow:
    return Flow.model_validate({"name": "test", "steps": list(steps), **more})


async def ran(app: Keptwork, *steps: dict[str, Any], library: Mapping[str, Flow] | None = None, **more: Any) -> Ran:
    """Start a flow of these steps, work until nothing is left to do, and return what became of it."""
    store, inputs = await app.open(), more.pop("given", {})
    ref = await flows.start(store, flow_of(*steps, **more), inputs, library=library or {})
    return await worked(app, ref)


async def worked(app: Keptwork, ref: flows.FlowRef) -> Ran:
    """Work until nothing is left to do, and return what became of the flow."""
    store = await app.open()
    await app.work(until_idle=True)
    (flow,) = await store.rows(ref.kind.flow, [ref.id])
    steps = {step["name"]: step for step in await store.steps(ref.id)}
    found = await store.outputs(ref.id, list(steps))
    outputs = {one.name: json.loads(one.output) for one in found if one.output is not None and not one.output_hash}
    return Ran(store, ref, flow, steps, outputs)

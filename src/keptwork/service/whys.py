"""Why something is not moving, whatever it is: each kind of entity has somebody who knows."""

from __future__ import annotations

from typing import Any, NamedTuple

from keptwork.lifecycle import CREW, JOB, RUN, RUN_STEP, WORKSTREAM, Lifecycle
from keptwork.service import why_crews, why_flows
from keptwork.service.why import Reason
from keptwork.store import Store


class Told(NamedTuple):
    """What it is, its row, and what is in its way; there is always something."""

    lifecycle: Lifecycle
    row: dict[str, Any]
    reasons: list[Reason]


EXPLAINERS = {
    JOB: why_flows.why_job,
    RUN: why_flows.why,
    WORKSTREAM: why_flows.why,
    RUN_STEP: why_flows.why_step,
    CREW: why_crews.why,
}


async def explained(store: Store, tenant_id: int, id: str) -> Told:
    """An entity by its public id, a step also by its flow and its name (`ws_…/lint`), and why it is where it is; a
    foreign or unknown one is `NotFound`."""
    prefix = id.strip().partition("_")[0]  # a mistyped one has it, too
    lifecycle = RUN_STEP if "/" in id else next((one for one in EXPLAINERS if one.prefix == prefix), JOB)
    return Told(lifecycle, *await EXPLAINERS[lifecycle](store, tenant_id, id))

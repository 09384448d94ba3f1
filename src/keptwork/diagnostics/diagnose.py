"""Explain why an entity of any kind is not moving."""

from __future__ import annotations

from typing import Any, NamedTuple

from keptwork.core.lifecycles import CREW, JOB, RUN, RUN_STEP, WORKSTREAM, Lifecycle
from keptwork.diagnostics import why_crews, why_flows
from keptwork.diagnostics.why_jobs import Reason
from keptwork.store import Store


class Told(NamedTuple):
    """The kind and the row of an entity, and the causes that keep it. There is always at least one cause."""

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
    """Return why an entity is where it is, by its public ID.

    A step can also be named `ws_…/lint`. Raise `NotFound` for an unknown ID and for another tenant's ID.
    """
    prefix = id.strip().partition("_")[0]  # a mistyped ID still has its prefix
    lifecycle = RUN_STEP if "/" in id else next((one for one in EXPLAINERS if one.prefix == prefix), JOB)
    return Told(lifecycle, *await EXPLAINERS[lifecycle](store, tenant_id, id))

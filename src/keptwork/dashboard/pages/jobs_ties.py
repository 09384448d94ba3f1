"""What a job belongs to: its step and flow, crew, agent job, and parent; and its children."""

from __future__ import annotations

from typing import Any, NamedTuple

from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import AGENT, CREW, JOB
from keptwork.flows import commands as flows
from keptwork.flows.commands import FlowRef
from keptwork.jobs import commands_children
from keptwork.store import Store

Row = dict[str, Any]


class Ties(NamedTuple):
    """Public IDs of what a job belongs to, or None; the step by its name. `children` are rows."""

    flow: str | None
    step: str | None
    crew: str | None
    agent: str | None
    parent: str | None
    children: list[Row]


async def job_ties(store: Store, job: Row) -> Ties:
    """Return what a job belongs to, and its children."""
    steps = await store.steps_by_key([job["step_id"]]) if job["step_id"] is not None else []
    agents = [row for row in await store.agents_of_jobs([job["id"]]) if row["tenant_id"] == job["tenant_id"]]
    return Ties(
        FlowRef(flows.kind_of(steps[0]), steps[0]["flow_id"]).public_id if steps else None,
        steps[0]["name"] if steps else None,
        _named(CREW.name, job["crew_id"]),
        _named(AGENT.name, agents[0]["id"] if agents else None),
        _named(JOB.name, job["parent_id"]),
        await commands_children.listed(store, job["tenant_id"], job["id"]),
    )


def _named(entity: str, key: int | None) -> str | None:
    return None if key is None else public_id(entity, key)

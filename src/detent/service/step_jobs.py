"""The jobs that carry out steps."""

from __future__ import annotations

import json
from typing import Any

from detent.flow.definition import Step
from detent.service.flow_scene import Row, Scene
from detent.store import NewJob

PREFIX = "detent."
"""What the kinds of jobs that carry out steps begin with."""

EXECUTED = ("tool", "command", "call", "agent")


def breaker_of(step: Step) -> str | None:
    """What may hold back the job of a step."""
    return f"breaker:tool:{step.tool}" if step.tool is not None else None


def step_job(scene: Scene, row: Row, step: Step, item: Any = None) -> NewJob:
    """The job that carries out a step. It alone has attempts, backoff and a lease."""
    said = {"flow": scene.public_id, "template": scene.flow["template_id"], "step": row["name"]}
    if row["parent_id"] is not None:
        said["item"] = item
    return NewJob(
        f"{PREFIX}{step.kind}",
        json.dumps(said, separators=(",", ":")),
        step.queue or scene.flow["queue"] or "default",
        scene.tenant_id,
        max_attempts=step.retries + 1,
        on_exhausted="fail",
        hold_key=breaker_of(step),
        actor=scene.actor.name,
        cause=scene.public_id,
        correlation_id=scene.flow["correlation_id"] or scene.public_id,
        trace_id=scene.flow["trace_id"],
        step_id=row["id"],
        tree_id=scene.tree,
    )

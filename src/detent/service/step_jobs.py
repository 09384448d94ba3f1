"""The jobs that carry out steps."""

from __future__ import annotations

import json
from typing import Any

from detent.breaker import hold_of
from detent.flow.definition import Step
from detent.service.flow_scene import Row, Scene
from detent.store import NewJob

PREFIX = "detent."
"""What the kinds of jobs that carry out steps begin with."""

RUN_RETRIES = 2
SPARE_ATTEMPTS = 100

EXECUTED = ("tool", "command", "call", "agent")


def breaker_of(step: Step) -> str | None:
    """What may hold back the job of a step."""
    return hold_of(f"tool:{step.tool}") if step.tool is not None and step.on_open == "hold" else None


def retries_of(kind: str, step: Step) -> int:
    """How often a step is tried again: as it says, in a run at most three attempts in all if it says nothing."""
    return step.retries if kind != "run" or "retries" in step.model_fields_set else RUN_RETRIES


def may_be_reviewed(step: Step) -> bool:
    """Whether a crash of its worker must leave it an attempt in which people are asked: it says that it must not run
    twice, or its tool may, which only workers know. Those count its failures themselves."""
    return step.idempotent is False or (step.tool is not None and step.idempotent is None)


def step_job(scene: Scene, row: Row, step: Step, item: Any = None) -> NewJob:
    """The job that carries out a step. It alone has attempts, backoff and a lease."""
    said = {"flow": scene.public_id, "template": scene.flow["template_id"], "step": row["name"]}
    if row["parent_id"] is not None:
        said["item"] = item
    if row["job_id"] is not None:
        said["again"] = True
    return NewJob(
        f"{PREFIX}{step.kind}",
        json.dumps(said, separators=(",", ":")),
        step.queue or scene.flow["queue"] or "default",
        scene.tenant_id,
        max_attempts=SPARE_ATTEMPTS if may_be_reviewed(step) else retries_of(scene.kind.name, step) + 1,
        on_exhausted="fail",
        hold_key=breaker_of(step),
        actor=scene.actor.name,
        cause=scene.public_id,
        correlation_id=scene.flow["correlation_id"] or scene.public_id,
        trace_id=scene.flow["trace_id"],
        step_id=row["id"],
        tree_id=scene.tree,
    )

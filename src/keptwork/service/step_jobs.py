"""The jobs that carry out steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from keptwork.bounds import OWN_KINDS
from keptwork.breaker import hold_of
from keptwork.flow.definition import Step
from keptwork.service.agent_moves import CRASHES
from keptwork.service.flow_scene import Row, Scene
from keptwork.store import NewJob

RUN_RETRIES, USUAL_RETRIES = 2, 3
SPARE_ATTEMPTS = 100
DEATHS = 3
"""So often may a worker die in a step that may be run again; then it is taken to be the step's doing."""

EXECUTED = ("tool", "command", "call", "agent")

_written = json.JSONEncoder(separators=(",", ":")).encode


def breaker_of(step: Step) -> str | None:
    """What may hold back the job of a step."""
    return hold_of(f"tool:{step.tool}") if step.tool is not None and step.on_open == "hold" else None


def retries_of(kind: str, step: Step) -> int:
    """How often a step is tried again: as it says. If it says nothing, in a run at most three attempts in all; what is
    asked of an agent as often as any agent job, and the shares of a crew as often as any job, for a worker may die."""
    if "retries" in step.model_fields_set:
        return step.retries
    if kind == "run":
        return RUN_RETRIES
    return step.retries if step.agent is None and step.crew is None else USUAL_RETRIES


def attempts_of(kind: str, step: Step) -> int:
    """How often its job may be started. The death of a worker is no failure of a step: for that there are some to
    spare, and whoever carries it out counts its failures by themselves."""
    if may_be_reviewed(step):
        return SPARE_ATTEMPTS
    if step.agent is not None or (step.crew is not None and step.crew.call is None):
        return retries_of(kind, step) + 1 + CRASHES
    return retries_of(kind, step) + 1 + (0 if step.crew is not None else DEATHS)


def may_be_reviewed(step: Step) -> bool:
    """Whether a crash of its worker must leave it an attempt in which people are asked: it says that it must not run
    twice, or its tool may, which only workers know. Those count its failures themselves."""
    return step.idempotent is False or (step.tool is not None and step.idempotent is None)


def queue_of(scene: Scene, step: Step) -> str:
    """Where workers find what carries out a step: in its own queue, or that of its flow."""
    return str(step.queue or scene.flow["queue"] or "default")


def step_job(scene: Scene, row: Row, step: Step, item: Any = None, along: Sequence[str] = ()) -> NewJob:
    """The job that carries out a step. It alone has attempts, backoff and a lease. `along` are steps that wait for
    nothing, either, and are carried out with it (stretch.py)."""
    said = {"flow": scene.public_id, "template": scene.flow["template_id"], "step": row["name"]}
    if row["parent_id"] is not None:
        said["item"] = item
    if row["job_id"] is not None:
        said["again"] = True
    if along:
        said["along"] = list(along)
    if step.inline and scene.careful:
        said["careful"] = scene.careful
    return NewJob(
        f"{OWN_KINDS}{step.kind}",
        _written(said),
        queue_of(scene, step),
        scene.tenant_id,
        max_attempts=attempts_of(scene.kind.name, step),
        on_exhausted="fail",
        hold_key=breaker_of(step),
        actor=scene.actor.name,
        cause=scene.public_id,
        correlation_id=scene.flow["correlation_id"] or scene.public_id,
        trace_id=scene.flow["trace_id"],
        step_id=row["id"],
        tree_id=scene.tree,
    )

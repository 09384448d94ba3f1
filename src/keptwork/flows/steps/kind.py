"""Create the jobs that run steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from keptwork.agents.engine import CRASHES
from keptwork.core.validation import OWN_KINDS
from keptwork.flows.definition import Step
from keptwork.flows.transaction import Row, Scene
from keptwork.jobs.breaker import hold_of
from keptwork.store import NewJob

RUN_RETRIES, USUAL_RETRIES = 2, 3
SPARE_ATTEMPTS = 100
DEATHS = 3
"""Crashes of workers in a step that can run again. After them, the step counts as the cause."""

EXECUTED = ("tool", "command", "call", "agent")

_written = json.JSONEncoder(separators=(",", ":")).encode


def breaker_of(step: Step) -> str | None:
    """Return the hold that a breaker can put on a step's job, or None."""
    return hold_of(f"tool:{step.tool}") if step.tool is not None and step.on_open == "hold" else None


def retries_of(kind: str, step: Step) -> int:
    """Return how often a step is retried: as it defines, or otherwise by default.

    In a run, a step has at most three attempts by default. In a workstream, agents and crews have the default retries
    of agent jobs and jobs, because a worker might crash.
    """
    if "retries" in step.model_fields_set:
        return step.retries
    if kind == "run":
        return RUN_RETRIES
    return step.retries if step.agent is None and step.crew is None else USUAL_RETRIES


def attempts_of(kind: str, step: Step) -> int:
    """Return the maximum attempts of a step's job.

    A crash of a worker is not a failure of the step, so the job has spare attempts. The worker that runs the step
    counts its failures separately.
    """
    if may_be_reviewed(step):
        return SPARE_ATTEMPTS
    if step.agent is not None or (step.crew is not None and step.crew.call is None):
        return retries_of(kind, step) + 1 + CRASHES
    return retries_of(kind, step) + 1 + (0 if step.crew is not None else DEATHS)


def may_be_reviewed(step: Step) -> bool:
    """Return whether a crash of the worker must leave an attempt that requests an approval.

    This is so if the step declares that it must not run twice, or if its tool might declare it, which only workers
    know. Workers count the failures of such steps themselves.
    """
    return step.idempotent is False or (step.tool is not None and step.idempotent is None)


def queue_of(scene: Scene, step: Step) -> str:
    """Return the queue of a step's job: its own, or that of its flow."""
    return str(step.queue or scene.flow["queue"] or "default")


def step_job(scene: Scene, row: Row, step: Step, item: Any = None, along: Sequence[str] = ()) -> NewJob:
    """Return the job that runs a step.

    Only the job has attempts, a backoff, and a lease. `along` are steps that are also ready and run in the same batch
    (flows/inline_batch.py).
    """
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

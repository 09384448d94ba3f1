"""Steps whose job ended without advancing their flow, because it was changed manually."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import JOB, RUN_STEP, Verb
from keptwork.core.lifecycles.job import SUCCEEDED
from keptwork.errors import StoreError
from keptwork.flows import commands as flows
from keptwork.flows import engine as advance
from keptwork.flows.compiled import KINDS
from keptwork.flows.inline_batch import companions_of
from keptwork.flows.plan_phase import Phase, phases
from keptwork.flows.transaction import Actor, Row, Scene
from keptwork.store import Store

ACTOR = "follow-up"
GONE = "its job is gone"
_OF_JOB = ("id", "state", "error", "reason", "result", "result_hash", "payload")

logger = logging.getLogger("keptwork")

AT_WORK = tuple(
    sorted(
        {state for kind in KINDS.values() for state, meaning in phases(kind.step).items() if meaning is Phase.ACTIVE}
    )
)
"""States of running steps."""


async def catch_up(store: Store, limit: int = 100) -> int:
    """Move steps to the outcomes of their jobs, advance their flows, and return how many moved."""
    found = await store.lost_steps(AT_WORK, limit)
    return sum([await _caught_up(store, step) for step in found])


async def _caught_up(store: Store, step: Row) -> bool:
    kind = flows.kind_of(step)

    async def work(scene: Scene) -> None:
        await scene.look_at([step["name"]])
        row = scene.steps[step["name"]]
        working = {job.step_id for job in await scene.tx.unfinished_jobs(scene.tree)}
        if not scene.over and scene.phase(row) is Phase.ACTIVE and row["id"] not in working:
            rows = await scene.tx.rows(JOB, [row["job_id"] or 0], _OF_JOB)
            await follow(scene, row, rows[0] if rows else None)

    try:
        await flows.change(store, flows.FlowRef(kind, step["flow_id"]), Actor(ACTOR), work)
    except StoreError:
        raise
    except Exception as error:  # a damaged flow must not end the worker that finds it
        _complain(step["id"], str(error))
        return False
    return True


@lru_cache(maxsize=1_000)
def _complain(step: int, error: str) -> None:
    """Log a warning once per process, because every call finds the step again. The doctor knows more about it."""
    logger.warning("the job of %s has ended, and its flow cannot follow: %s", public_id(RUN_STEP.name, step), error)


async def follow(scene: Scene, row: Row, job: Row | None) -> None:
    """Move a step to the outcome of its job, and advance its flow.

    If the job was deleted, its outcome is unknown: the step fails and does not run again.
    """
    advance.begin_flow(scene)
    if job is not None and job["state"] == SUCCEEDED.name:
        _begin_again(scene, row)
        scene.move(row, Verb.SUCCEED, f"its job was {job['state']}", **_output(job))
    else:
        why = GONE if job is None else job["error"] or job["reason"] or f"its job was {job['state']}"
        advance.fail_step(scene, row, why)
    await advance.go_on(scene, [row], () if job is None else companions_of(job["payload"]))


def _begin_again(scene: Scene, row: Row) -> None:
    """Resume a step that waits for another attempt, so that it can succeed."""
    if not scene.kind.step.leading_out_of(row["state"], Verb.SUCCEED):
        scene.move(row, Verb.RESUME)


def _output(job: Row) -> dict[str, Any]:
    return {"output": job["result"], "output_hash": job["result_hash"], "cost_micros": None}

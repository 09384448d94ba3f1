"""Complete the consequences of finished jobs that the transaction which finished them did not write.

Children of a cancelled job are cancelled, and approval requests of a finished job are withdrawn. A cancellation
normally does so in its own transaction. This task handles what a crash interrupted, and jobs that their own handlers
cancelled. A job that suspended before its handler noticed a cancellation request is cancelled. Crews that timed out or
missed a move are moved. A step or an agent job takes the outcome of its job, if the job was finished without telling
its flow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import lru_cache, partial
from typing import Any

from keptwork.agents import engine as agent_moves
from keptwork.core import ids
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, JOB, RUN_STEP, Verb
from keptwork.core.lifecycles.job import SUCCEEDED
from keptwork.crews import commands as crews
from keptwork.crews.engine import ACTOR as CREW_ACTOR
from keptwork.crews.engine import allocate, anyone_to_let_go, call_off, lock_of, look_at
from keptwork.errors import FlowBusy, InvalidTransition, StoreError
from keptwork.flows import commands as flows
from keptwork.flows import engine as advance
from keptwork.flows.compiled import KINDS
from keptwork.flows.inline_batch import companions_of
from keptwork.flows.plan import Phase, phases
from keptwork.flows.transaction import Actor, Row, Scene
from keptwork.jobs import commands_children
from keptwork.jobs.complete import again_if_moved
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store, Transaction
from keptwork.store.contract.crews import A_CREW

# Steps whose job ended without advancing their flow, because it was changed manually.


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


# Repair crews after crashes and manual edits, and apply their timeouts.
#
# Crews normally move in the transaction of the cause. This module handles what no such transaction has seen: expired
# timeouts, shares that ended without a move of their crew, and free workers that a crew waits for.


CrewRow = dict[str, Any]


async def mend(store: Store) -> int:
    """Move crews that should have moved, assign free workers, and return how many were found.

    Without crews, this takes one query.
    """
    tenants = await store.crew_tenants()
    found = 0
    if tenants:
        for tenant_id, key in await store.crews_amiss(MOST_AT_ONCE):
            with contextlib.suppress(FlowBusy, InvalidTransition):  # another transaction or an operator moves it
                await again_if_moved(store, partial(_mend, tenant_id=tenant_id, key=key))
                found += 1
    for tenant_id in tenants:
        found += await _wake_forgotten(store, tenant_id)
        if await anyone_to_let_go(store, tenant_id):
            found += await store.atomically(lambda tx, tenant_id=tenant_id: _allocate(tx, tenant_id))  # type: ignore[misc]
    return found


async def _mend(tx: Transaction, tenant_id: int, key: int) -> None:
    row = await tx.get(CREW, key, tenant_id)
    if row is None:
        return
    await tx.lock_trees([crews.tree_of(row), lock_of(tenant_id)])
    row = await tx.get(CREW, key, tenant_id)
    if row is None or row["completed_at"] is not None:
        return
    over: list[CrewRow] = []
    if because := await _lost_cause(tx, row):
        over = await call_off(tx, row, because, CREW_ACTOR)
    elif row["state"] == CREW.initial.name:
        await crews.validate(tx, key)
    else:
        over = await look_at(tx, [key])
    await allocate(tx, tenant_id)
    await advance.crews_ended(tx, over)


async def _lost_cause(tx: Transaction, row: CrewRow) -> str | None:
    if row["deadline_at"] is not None and row["deadline_at"] <= await tx.now():
        return "timeout"
    parent = None if row["parent_id"] is None else await tx.get(CREW, row["parent_id"], row["tenant_id"])
    if parent is not None and parent["completed_at"] is not None:
        return f"crew {public_id(CREW.name, parent['id'])}, which it is inside of, has ended"
    asker = None if row["asker_id"] is None else await tx.get(JOB, row["asker_id"], row["tenant_id"])
    if asker is not None and asker["state"] == JOB.move("cancel").target.name:
        return f"{public_id(JOB.name, asker['id'])}, which waited for it, was cancelled"
    return None


async def _wake_forgotten(store: Store, tenant_id: int) -> int:
    forgotten = await store.forgotten_askers(tenant_id, MOST_AT_ONCE)
    ended = [found[1] for _, waits_for in forgotten if (found := ids.key_of(waits_for.removeprefix(A_CREW)))]
    return await store.wake_for_crews([job for job, _ in forgotten], ended) if ended else 0


async def _allocate(tx: Transaction, tenant_id: int) -> int:
    await tx.lock_trees([lock_of(tenant_id)])
    return await allocate(tx, tenant_id)


BEAT_SECONDS = 1.0
RESTS = 20  # Multiple of the duration of a check: with thousands of running parents a check takes a while.
MOST_AT_ONCE = 100


class FollowUp:
    """Finds and completes unfinished consequences; every process can have one."""

    def __init__(self, store: Store, outage: Outage) -> None:
        self._store = store
        self._outage = outage

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.run_once()
                self._outage.over("follow up")
            except StoreError as error:
                self._outage.endure("follow up", error)
            await asyncio.sleep(max(BEAT_SECONDS, (time.monotonic() - began) * RESTS))

    async def run_once(self) -> int:
        """Return the number of jobs finished, steps, agent jobs, and crews moved, and approval requests withdrawn."""
        done = 0
        for tenant_id, job in await self._store.stopped_waits(MOST_AT_ONCE):
            done += await commands_children.cancel_stopped(self._store, tenant_id, job)
        for tenant_id, parent in await self._store.cancelled_parents(MOST_AT_ONCE):
            done += await commands_children.cancel_children(self._store, tenant_id, parent)
        done += await catch_up(self._store, MOST_AT_ONCE)
        done += await agent_moves.mend(self._store, MOST_AT_ONCE)
        return done + await mend(self._store) + await self._store.withdraw_approvals()

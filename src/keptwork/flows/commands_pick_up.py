"""Resume an unfinished flow that was stopped, was held, has failed, or lost its process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from keptwork.core.lifecycles import JOB, WORKER, Verb
from keptwork.errors import BadInput
from keptwork.flows import commands as flows
from keptwork.flows import compiled, continuation
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import Library
from keptwork.flows.definition import Flow
from keptwork.flows.plan import Phase
from keptwork.flows.steps import flow
from keptwork.flows.transaction import Actor, Row, Scene
from keptwork.store import Job, Store
from keptwork.store.contract.store import Transaction


async def pick_up(store: Store, ref: FlowRef, actor: Actor) -> None:
    """Lift the hold of a held flow, retry a failed flow, or start what could run in another.

    A job that a dead worker held in its last attempt gets one more attempt, because its failure was not observed.
    """
    flow = await flows.row_of(store, ref)
    if ref.kind.flow.state(flow["state"]).final:
        raise BadInput(what=ended(ref, flow))
    await store.atomically(lambda tx: _grant(tx, ref, flow["tree_id"] or ref.id, flow["tenant_id"]))
    if flow["held_at"] is not None:
        await flows.let_go(store, ref, actor)
    elif _failed(ref, flow):
        await flows.retry(store, ref, actor)
    else:
        await flows.resume(store, ref, actor)
    await _retry_inside(store, ref, actor)


async def find_resumable(store: Store, ref: FlowRef, actor: Actor) -> FlowRef:
    """Return the flow to continue.

    For a failed run, which is final, that is the fork from its failed step.
    """
    ref = await continuation.last_of(store, ref)
    (row,) = await store.rows(ref.kind.flow, [ref.id], ("state",))
    final = ref.kind.flow.state(row["state"]).final
    return await continuation.resumed_run(store, ref, actor) if final and _failed(ref, row) else ref


def succeeded(ref: FlowRef, flow: Row) -> bool:
    """Return whether a flow succeeded."""
    return flow["state"] in {move.target.name for move in ref.kind.flow.moves if move.verb is Verb.SUCCEED}


def ended(ref: FlowRef, flow: Row) -> str:
    """Return a message that a flow has finished, with what can still be done."""
    says = f"{ref.public_id} is {flow['state']}, which is final: nothing of it can be resumed."
    if ref.kind.name == "workstream":
        says += f" To run it anew from a step: keptwork workstreams fork {ref.public_id} --from STEP"
    return says


async def _retry_inside(store: Store, ref: FlowRef, actor: Actor) -> None:
    """Retry nested flows that have failed and wait for an operator."""

    async def failed(scene: Scene) -> list[FlowRef]:
        inner = await flow.inside(scene)
        return [FlowRef(one.kind, one.id) for one in inner if one.own_phase is Phase.FAILED]

    for one in await flows.change(store, ref, actor, failed):
        await flows.retry(store, one, actor)


async def is_another(store: Store, ref: FlowRef, flow: Flow, library: Library) -> bool:
    """Return whether a definition, or one nested in it, differs from the one that a flow runs."""
    (row,) = await store.rows(ref.kind.flow, [ref.id], ("tenant_id", "template_id"))
    return await compiled.is_another(store, row["tenant_id"], row["template_id"], flow, library)


def _failed(ref: FlowRef, flow: Row) -> bool:
    return flow["state"] in {move.target.name for move in ref.kind.flow.moves if move.verb is Verb.FAIL}


async def _grant(tx: Transaction, ref: FlowRef, tree: int, tenant_id: int) -> None:
    await tx.lock_trees([tree])
    held = [job for job in await tx.unfinished_jobs(tree) if job.owner is not None]
    last = [job for job in held if job.attempts >= job.max_attempts]
    gone = await _gone(tx, last)
    for job in last:
        if job.owner in gone:
            await tx.amend(JOB, [job.id], tenant_id, max_attempts=job.attempts + 1)


async def _gone(tx: Transaction, jobs: Sequence[Job]) -> set[int]:
    """Return the workers of these jobs that have ended, as far as this host can tell."""
    owners = sorted({job.owner for job in jobs if job.owner is not None})
    rows = await tx.rows(WORKER, owners, ("id", "state", "host", "pid")) if owners else []
    alive = {row["id"] for row in rows if not WORKER.state(row["state"]).final and not _dead_here(row)}
    return set(owners) - alive


def _dead_here(row: Row, host: Callable[[], str] = socket.gethostname) -> bool:
    if row["host"] != host() or not row["pid"]:
        return False
    try:
        os.kill(row["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False

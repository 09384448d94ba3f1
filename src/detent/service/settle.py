"""Writing moves of jobs together with what follows from them for what the jobs work for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from detent.errors import FlowBusy
from detent.lifecycle import Change, Verb
from detent.service import advance
from detent.service.flow_scene import Moved
from detent.store import Job, Store
from detent.store.blobs import RESULT_BLOB
from detent.store.protocol import Transaction

TRIES = 50

T = TypeVar("T")


async def applied(store: Store | Transaction, changes: Sequence[Change]) -> list[Change]:
    """Writes moves of jobs, and in the same transaction those of the steps they carry out and of their flows. Those
    that came too late are returned, and have changed nothing."""
    if not any(change.tree_id for change in changes):
        return await store.apply(changes)
    return await again_if_moved(store, lambda tx: _applied(tx, changes), 2 * len(changes))


async def applied_and_claimed(
    store: Store, changes: Sequence[Change], claim: Callable[[Transaction], Awaitable[list[Job]]]
) -> tuple[list[Change], list[Job]]:
    """The same, and in the same transaction what the claim takes of what is due then: the step that comes next begins
    where the one before it has ended, and needs no transaction of its own."""

    async def work(tx: Transaction) -> tuple[list[Change], list[Job]]:
        return await _applied(tx, changes), await claim(tx)

    return await again_if_moved(store, work, 3 * len(changes))


async def again_if_moved(store: Store | Transaction, work: Callable[[Transaction], Awaitable[T]], weight: int = 1) -> T:
    """Does work in one transaction; from the start again when a worker started a job of the flow in between."""
    for _ in range(TRIES):
        try:
            return await store.atomically(work, weight)
        except Moved:
            continue
    raise FlowBusy(tries=TRIES)


async def _applied(tx: Transaction, changes: Sequence[Change]) -> list[Change]:
    await tx.lock_trees([change.tree_id for change in changes if change.tree_id is not None])
    late = await tx.apply([_without_result(change) for change in changes])
    too_late = {(change.id, change.seq) for change in late}
    in_time = [change for change in changes if (change.id, change.seq) not in too_late]
    await advance.settled(tx, [change for change in in_time if change.step_id is not None])
    return [change for change in changes if (change.id, change.seq) in too_late]


def _without_result(change: Change) -> Change:
    """What came of a step is kept with the step alone."""
    if change.step_id is None or change.move.verb is not Verb.SUCCEED:
        return change
    rest = {name: value for name, value in change.values.items() if name not in ("result", RESULT_BLOB)}
    return change._replace(values={**rest, "result": None})

"""Writing moves of jobs together with what follows from them for what the jobs work for."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from detent.errors import FlowBusy, LeaseLost, StoreError
from detent.lifecycle import Change, Verb
from detent.service import advance, breakers, crew_moves
from detent.service.entities import public_id
from detent.service.flow_scene import Moved
from detent.store import Store
from detent.store.blobs import RESULT_BLOB
from detent.store.protocol import Transaction

TRIES = 50

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def applied(store: Store | Transaction, changes: Sequence[Change]) -> list[Change]:
    """Writes moves of jobs, and in the same transaction those of the steps they carry out and of their flows. Those
    that came too late are returned, and have changed nothing."""
    if not any(change.tree_id for change in changes) and not crew_moves.concerned(changes):
        return await store.apply(changes)
    try:
        return await again_if_moved(store, lambda tx: _applied(tx, changes), 2 * len(changes))
    except StoreError:
        raise
    except Exception as error:
        return await _one_by_one(store, changes, error)


async def _one_by_one(store: Store | Transaction, changes: Sequence[Change], error: Exception) -> list[Change]:
    """What follows from one of these moves cannot be done. It must not end a worker, nor keep back the others: the job
    alone is moved, and keeps its result; its step is left to `detent doctor`."""
    if len(changes) > 1:
        return [late for change in changes for late in await applied(store, [change])]
    id = public_id(changes[0].lifecycle.name, changes[0].id)
    logger.error("%s moves without its step: %s; see: detent doctor", id, error, exc_info=error)
    return await store.apply(changes)


async def applied_and_told(
    store: Store | Transaction, changes: Sequence[Change], reports: Sequence[breakers.Report]
) -> breakers.Settled:
    """The same, and in the same transaction the breakers that the jobs had asked are told what came of them."""
    try:
        return await again_if_moved(store, lambda tx: breakers.settle(tx, changes, reports, _applied), 2 * len(changes))
    except StoreError:
        raise
    except Exception as error:
        return breakers.Settled(await _one_by_one(store, changes, error), False)


async def again_if_moved(store: Store | Transaction, work: Callable[[Transaction], Awaitable[T]], weight: int = 1) -> T:
    """Does work in one transaction; from the start again when a worker started a job of the flow in between. As a part
    of a greater transaction it is done once: what was written of it cannot be taken back alone."""
    for _ in range(TRIES if hasattr(store, "transaction") else 1):
        try:
            return await store.atomically(work, weight)
        except (Moved, LeaseLost):  # the latter of a crew that was moved by hand, past every lock
            continue
    raise FlowBusy(tries=TRIES)


async def _applied(tx: Transaction, changes: Sequence[Change]) -> list[Change]:
    await tx.lock_trees([*(change.tree_id for change in changes if change.tree_id), *crew_moves.locks(changes)])
    late = await tx.apply([_without_result(change) for change in changes])
    too_late = {(change.id, change.seq) for change in late}
    in_time = [change for change in changes if (change.id, change.seq) not in too_late]
    if working := [change for change in in_time if change.step_id is not None]:
        await advance.settled(tx, working)
    if crew_moves.concerned(in_time):
        await advance.crews_ended(tx, await crew_moves.settled(tx, in_time))
    return [change for change in changes if (change.id, change.seq) in too_late]


def _without_result(change: Change) -> Change:
    """What came of a step is kept with the step alone."""
    if change.step_id is None or change.move.verb is not Verb.SUCCEED:
        return change
    rest = {name: value for name, value in change.values.items() if name not in ("result", RESULT_BLOB)}
    return change._replace(values={**rest, "result": None})

"""Write moves of jobs with the moves of steps, flows, crews, and breakers that follow."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from keptwork.agents import engine as agent_moves
from keptwork.core.lifecycles import Change, Verb
from keptwork.crews import engine as crew_moves
from keptwork.errors import FlowBusy, LeaseLost, StoreError
from keptwork.flows import engine as advance
from keptwork.flows.handover import handed_over
from keptwork.flows.transaction import Moved, Seat
from keptwork.jobs import breakers
from keptwork.store import Job, Store
from keptwork.store.contract.checkpoints_blobs import RESULT_BLOB
from keptwork.store.contract.store import Transaction

TRIES = 50

logger = logging.getLogger("keptwork")

T = TypeVar("T")


class Settled(NamedTuple):
    """Late changes, the next step's job if started, and whether a breaker might have moved."""

    late: list[Change]
    begun: Job | None = None
    stirred: bool = False


async def applied(store: Store | Transaction, changes: Sequence[Change]) -> list[Change]:
    """Write moves of jobs, and in the same transaction the moves that follow from them.

    These are moves of steps, flows, and crews. Return the changes that came too late, which have changed nothing.
    """
    return (await settle(store, changes)).late


async def settle(
    store: Store | Transaction,
    changes: Sequence[Change],
    reports: Sequence[breakers.Report] = (),
    seat: Seat | None = None,
) -> Settled:
    """Write moves of jobs as `applied` does, and report their outcomes to their breakers.

    If exactly one step comes next, its job can start immediately in the worker slot `seat`. The transaction claims
    nothing: the log is ordered by when transactions began to write, so a claimed job must have existed before.
    """
    others = crew_moves.concerned(changes) or agent_moves.concerned(changes)
    if not (others or reports or any(change.tree_id for change in changes)):
        return Settled(await store.apply(changes))
    if seat is not None and len(changes) == 1 and not (others or reports) and hasattr(store, "hand_over"):
        begun = await handed_over(store, changes[0], _without_result(changes[0]), seat)
        if begun is not None:
            return Settled([], begun)

    async def work(tx: Transaction) -> Settled:
        if seat is not None:
            seat.taken_by = None
        write = partial(_applied, seat=seat)
        told = await breakers.settle(tx, changes, reports, write) if reports else None
        late = await write(tx, changes) if told is None else told.late
        return Settled(late, None if seat is None else seat.taken_by, told is not None and told.stirred)

    try:
        return await again_if_moved(store, work, 3 * len(changes))
    except StoreError:
        raise
    except Exception:
        if not isinstance(store, Begins):
            raise
        return Settled(await _tree_by_tree(store, changes))


@runtime_checkable
class Begins(Protocol):
    """A store that can open transactions.

    If work in one of them fails, the store rolls it back. A `Transaction` cannot do that for its own writes.
    """

    def transaction(self, tenant_id: int | None = None) -> Any: ...


async def _tree_by_tree(store: Store, changes: Sequence[Change]) -> list[Change]:
    """Write the changes of each tree separately, because one flow cannot follow its jobs.

    That flow is damaged; the other flows follow theirs. The jobs of the damaged flow finish and store their results
    with the jobs, where `keptwork doctor` finds them. A damaged flow must not stop a worker.
    """
    late: list[Change] = []
    for tree in dict.fromkeys(change.tree_id for change in changes):
        own = [change for change in changes if change.tree_id == tree]
        try:
            late += await again_if_moved(store, partial(_applied, changes=own), 2 * len(own))
        except StoreError:
            raise
        except Exception as error:
            logger.warning("a flow cannot follow its jobs: %s; see: keptwork doctor", error, exc_info=error)
            late += await store.atomically(partial(agent_moves.write, changes=own, follow=False))
    return late


async def again_if_moved(store: Store | Transaction, work: Callable[[Transaction], Awaitable[T]], weight: int = 1) -> T:
    """Run `work` in one transaction, and again if a worker started a job of the flow meanwhile.

    As part of a larger transaction it runs only once, because its writes cannot be rolled back separately.
    """
    for _ in range(TRIES if hasattr(store, "transaction") else 1):
        try:
            return await store.atomically(work, weight)
        except (Moved, LeaseLost):  # LeaseLost: an operator's SQL moved a crew, which takes no lock
            continue
    raise FlowBusy(tries=TRIES)


async def _applied(tx: Transaction, changes: Sequence[Change], seat: Seat | None = None) -> list[Change]:
    await tx.lock_trees([*(change.tree_id for change in changes if change.tree_id), *crew_moves.locks(changes)])
    late = await agent_moves.write(tx, [_without_result(change) for change in changes])
    too_late = {(change.id, change.seq) for change in late}
    in_time = [change for change in changes if (change.id, change.seq) not in too_late]
    if working := [change for change in in_time if change.step_id is not None]:
        await advance.settled(tx, working, seat)
    if crew_moves.concerned(in_time):
        await advance.crews_ended(tx, await crew_moves.settled(tx, in_time))
    return [change for change in changes if (change.id, change.seq) in too_late]


def _without_result(change: Change) -> Change:
    """Return the change without its result if a step stores that result."""
    if change.step_id is None or change.move.verb is not Verb.SUCCEED:
        return change
    rest = {name: value for name, value in change.values.items() if name not in ("result", RESULT_BLOB)}
    return change._replace(values={**rest, "result": None})

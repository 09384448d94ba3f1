"""The override: an operator's correction of what no move can repair. Histories show it separately."""

from __future__ import annotations

from typing import Any, NamedTuple

from keptwork.agents import engine as agent_moves
from keptwork.core.decide import OVERRIDE
from keptwork.core.ids import public_id, resolve, unknown
from keptwork.core.lifecycles import JOB, RUN, WORKSTREAM, Lifecycle, override
from keptwork.diagnostics.doctor import runner
from keptwork.diagnostics.doctor.finding import Finding
from keptwork.diagnostics.doctor.finding import as_json as finding_json
from keptwork.errors import BadInput
from keptwork.flows.commands import FlowRef, kind_of
from keptwork.flows.compiled import KINDS
from keptwork.flows.queries import find_step
from keptwork.flows.transaction import Moved
from keptwork.jobs.complete import again_if_moved
from keptwork.store import Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.store import Reader, Transaction

Row = dict[str, Any]

LONGEST_REASON = 4_000


class Overridden(NamedTuple):
    """An entity as it was, its new state, whether that was written, and the findings then."""

    lifecycle: Lifecycle
    before: Row
    state: str
    written: bool
    findings: list[Finding]

    @property
    def public_id(self) -> str:
        return public_id(self.lifecycle.name, self.before["id"])


@acknowledged
async def overridden(
    store: Store, tenant_id: int, id: str, to: str, *, reason: str, actor: str, dry_run: bool = False
) -> Overridden:
    """Put an entity into a state of its lifecycle, from any state. Nothing is written if it is in that state."""
    lifecycle, row = await _found(store, id, tenant_id)
    state = _state(lifecycle, to)
    because = _reason(reason)
    if dry_run or row["state"] == state:
        return Overridden(lifecycle, row, state, False, [])

    async def work(tx: Transaction) -> tuple[Row, list[Finding]]:
        tree = await _tree(tx, lifecycle, row)
        if tree is not None:
            await tx.lock_trees([tree])
        (seen,) = await tx.rows(lifecycle, [row["id"]])
        moves = [override(lifecycle, seen, state, reason=because, actor=actor)]
        if await agent_moves.write(tx, moves, follow=False):
            raise Moved
        return seen, await _left(tx, lifecycle, seen)

    before, left = await again_if_moved(store, work)
    return Overridden(lifecycle, before, state, True, left)


def as_json(done: Overridden) -> dict[str, Any]:
    """Return an override in the form that commands print."""
    return {
        "id": done.public_id,
        "entity": done.lifecycle.name,
        "from": done.before["state"],
        "state": done.state if done.written else done.before["state"],
        "to": done.state,
        "written": done.written,
        "findings": [finding_json(one) for one in done.findings],
    }


async def _found(store: Reader, id: str, tenant_id: int) -> tuple[Lifecycle, Row]:
    """Return an entity by its public ID, or a step by its flow and name."""
    if "/" in id:
        step = await find_step(store, tenant_id, id)
        return kind_of(step).step, step
    lifecycles, key = resolve(id)
    for lifecycle in lifecycles:
        row = await store.get(lifecycle, key, tenant_id)
        if row is not None:
            return lifecycle, row
    raise unknown(id)


def _state(lifecycle: Lifecycle, named: str) -> str:
    """Return a state by its declared name or as users write it."""
    wanted = named.strip().replace("-", "_").casefold()
    for state in lifecycle.states:
        if state.name.casefold() == wanted:
            return state.name
    known = ", ".join(state.name for state in lifecycle.states)
    raise BadInput(what=f"a {lifecycle.name} has no state {named!r}; it has: {known}")


def _reason(reason: str) -> str:
    if not reason.strip():
        raise BadInput(what=f"an {OVERRIDE} needs a reason: say why with --reason")
    if len(reason) > LONGEST_REASON:
        raise BadInput(what=f"a reason of {len(reason):,} characters is over the limit of {LONGEST_REASON:,}")
    return reason


async def _tree(store: Reader, lifecycle: Lifecycle, row: Row) -> int | None:
    """Return the tree of flows whose lock changes of this entity need, or None."""
    if lifecycle in (RUN, WORKSTREAM):
        return int(row["tree_id"] or row["id"])
    if lifecycle is JOB:
        return None if row["tree_id"] is None else int(row["tree_id"])
    if lifecycle.shares_table and row["flow_id"] is not None:
        found = await store.rows(kind_of(row).flow, [row["flow_id"]], ("id", "tree_id"))
        return int(found[0]["tree_id"] or found[0]["id"]) if found else None
    return None


async def _left(store: Reader, lifecycle: Lifecycle, row: Row) -> list[Finding]:
    """Return the doctor's findings about the entity's flow."""
    ref = await _flow(store, lifecycle, row)
    return [] if ref is None else await runner.examine_flow(store, ref)


async def _flow(store: Reader, lifecycle: Lifecycle, row: Row) -> FlowRef | None:
    if lifecycle in (RUN, WORKSTREAM):
        return FlowRef(KINDS[lifecycle.name], row["id"])
    step = row
    if lifecycle is JOB:
        steps = [] if row["step_id"] is None else await store.steps_by_key([row["step_id"]])
        if not steps:
            return None
        step = steps[0]
    elif not lifecycle.shares_table:
        return None
    return None if step["flow_id"] is None else FlowRef(kind_of(step), step["flow_id"])

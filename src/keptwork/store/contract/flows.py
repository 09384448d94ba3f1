"""The store's operations on flows, written once for both databases, which differ in how they run a statement."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from keptwork.core.decide import Lifecycle
from keptwork.core.lifecycles import BREAKER, JOB, WORKSTREAM
from keptwork.store.contract.flows_steps import STEP_COLUMNS, FlowFilter, NewGate, Output
from keptwork.store.contract.flows_templates import NewTemplate, Template
from keptwork.store.contract.records import Hold, Job
from keptwork.store.contract.waits_approvals import Approval

T = TypeVar("T")

Rows = Sequence[Sequence[Any]]

_POSITION, _PLACE = STEP_COLUMNS.index("position"), STEP_COLUMNS.index("place")


def _in_order_of_flow(row: Sequence[Any]) -> tuple[int, int]:
    return row[_POSITION], row[_PLACE] or 0


class FlowReads(ABC):
    """The read operations."""

    @abstractmethod
    async def _ask(self, statement: str, /, **values: Any) -> Rows:
        """Run a named statement that changes nothing and return its rows."""

    @abstractmethod
    def _list(self, values: Sequence[Any]) -> Any:
        """Return several values as one statement parameter."""

    @abstractmethod
    async def rows(
        self, lifecycle: Lifecycle, ids: Sequence[int], columns: Sequence[str] = ("*",)
    ) -> list[dict[str, Any]]:
        """Return the rows of entities, as `Reader.rows` promises."""

    async def open_waits(self, tenant_id: int, job: int) -> list[tuple[str, int | None]]:
        return [(row[0], row[1]) for row in await self._ask("open_waits", tenant_id=tenant_id, job=job)]

    async def template(self, tenant_id: int, id: int) -> Template | None:
        found = await self._ask("template", tenant_id=tenant_id, id=id)
        return Template(*found[0]) if found else None

    async def templates(
        self,
        tenant_id: int,
        *,
        name: str | None = None,
        newest_only: bool = True,
        after: tuple[str, int] | None = None,
        limit: int = 100,
    ) -> list[Template]:
        place = dict(zip(("after_name", "after_version"), after or (None, None), strict=True))
        wanted = {"name": name, "newest": int(newest_only), **place, "limit": limit}
        return [Template(*row) for row in await self._ask("templates", tenant_id=tenant_id, **wanted)]

    async def steps(
        self, flow: int, *, names: Sequence[str] | None = None, parent: int | None = None
    ) -> list[dict[str, Any]]:
        if names is not None:
            rows = await self._ask("steps_by_name", flow_id=flow, names=self._list(names))
            found: Rows = sorted(rows, key=_in_order_of_flow)
        elif parent is not None:
            found = await self._ask("steps_of_step", flow_id=flow, parent_id=parent)
        else:
            found = await self._ask("steps_of_flow", flow_id=flow)
        return [dict(zip(STEP_COLUMNS, row, strict=True)) for row in found]

    async def elements_in(self, parent: int, state: str, limit: int) -> list[dict[str, Any]]:
        found = await self._ask("elements_in", parent_id=parent, state=state, limit=limit)
        return [dict(zip(STEP_COLUMNS, row, strict=True)) for row in found]

    async def steps_by_key(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        found = await self._ask("steps_by_key", ids=self._list(ids))
        return [dict(zip(STEP_COLUMNS, row, strict=True)) for row in found]

    async def outputs(self, flow: int, names: Sequence[str]) -> list[Output]:
        found = await self._ask("step_outputs", flow_id=flow, names=self._list(sorted(names)))
        return [Output(*row) for row in found]

    async def elements(self, parent: int) -> list[Output]:
        return [Output(*row) for row in await self._ask("element_outputs", parent_id=parent)]

    async def step_counts(self, flow: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._ask("step_counts", flow_id=flow)}

    async def element_counts(self, parent: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._ask("element_counts", parent_id=parent)}

    async def flow_by_key(self, lifecycle: Lifecycle, tenant_id: int, key: str) -> dict[str, Any] | None:
        found = await self._ask(f"by_key_{lifecycle.table}", tenant_id=tenant_id, key=key)
        return (await self.rows(lifecycle, [found[0][0]]))[0] if found else None

    async def any_unfinished(self, flow: int, besides: Sequence[str] = ()) -> bool:
        return bool(await self._ask("any_unfinished", flow_id=flow, names=self._list(besides)))

    async def unfinished_jobs(self, tree: int) -> list[Job]:
        return [Job(*row) for row in await self._ask("unfinished_jobs", tree_id=tree)]

    async def subflows(self, lifecycle: Lifecycle, step: int) -> list[dict[str, Any]]:
        found = await self._ask(f"subflows_{lifecycle.table}", step_id=step)
        return await self._in_order(lifecycle, found)

    async def resumption(self, lifecycle: Lifecycle, flow: int) -> int | None:
        found = await self._ask(f"resumption_{lifecycle.table}", id=flow)
        return int(found[0][0]) if found else None

    async def forks(self, workstream: int) -> list[dict[str, Any]]:
        return await self._in_order(WORKSTREAM, await self._ask("forks", id=workstream))

    async def flows(
        self,
        lifecycle: Lifecycle,
        wanted: FlowFilter = FlowFilter(),  # noqa: B008 - frozen, so safe to share
        *,
        after: int | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        states = None if wanted.states is None else self._list(wanted.states)
        which = {"tenant_id": wanted.tenant_id, "name": wanted.name, "inside": int(wanted.inside)}
        made = {"since": wanted.made_since, "before": wanted.made_before}
        found = await self._ask(f"listed_{lifecycle.table}", **which, **made, names=states, after=after, limit=limit)
        return await self._in_order(lifecycle, found)

    async def flows_to_wake(self, lifecycle: Lifecycle, limit: int) -> list[dict[str, Any]]:
        return await self._in_order(lifecycle, await self._ask(f"to_wake_{lifecycle.table}", limit=limit))

    async def next_flow_wake(self) -> int | None:
        at: int | None = (await self._ask("next_flow_wake"))[0][0]
        return at

    async def expired_gates(self, limit: int) -> list[Approval]:
        return [Approval(*row) for row in await self._ask("expired_gates", limit=limit)]

    async def gate(self, tenant_id: int, step: int) -> Approval | None:
        found = await self._ask("gate", tenant_id=tenant_id, step_id=step)
        return Approval(*found[0]) if found else None

    # --- for repairs

    async def ended_amiss(
        self, lifecycle: Lifecycle, success: str, otherwise: Sequence[str], *, after: int = 0, limit: int = 100
    ) -> list[int]:
        which = {"state": success, "names": self._list(otherwise), "after": after, "limit": limit}
        return [row[0] for row in await self._ask(f"ended_amiss_{lifecycle.table}", **which)]

    async def lost_steps(self, states: Sequence[str], limit: int) -> list[dict[str, Any]]:
        found = await self._ask("lost_steps", names=self._list(states), limit=limit)
        rows = await self.steps_by_key([row[0] for row in found]) if found else []
        return sorted(rows, key=lambda row: int(row["id"]))

    async def long_at_work(self, states: Sequence[str], before: int, limit: int) -> list[dict[str, Any]]:
        which = {"names": self._list(states), "before": before, "limit": limit}
        return await self._in_order(JOB, await self._ask("long_at_work", **which))

    async def unleased(self, limit: int) -> list[dict[str, Any]]:
        return await self._in_order(JOB, await self._ask("unleased", limit=limit))

    async def holds(self) -> list[Hold]:
        return [Hold(*row) for row in await self._ask("holds")]

    async def unclosed_breakers(self, limit: int) -> list[dict[str, Any]]:
        return await self._in_order(BREAKER, await self._ask("unclosed_breakers", limit=limit))

    async def _in_order(self, lifecycle: Lifecycle, found: Rows) -> list[dict[str, Any]]:
        keys = [row[0] for row in found]
        rows = {row["id"]: row for row in await self.rows(lifecycle, keys)} if keys else {}
        return [rows[key] for key in keys if key in rows]


class FlowVerbs(FlowReads):
    """The write operations."""

    @abstractmethod
    async def _tell(self, statement: str, /, **values: Any) -> Rows:
        """Run a named statement that makes changes and return its rows."""

    @abstractmethod
    async def atomically(self, work: Callable[[Any], Awaitable[T]], weight: int = 1) -> T:
        """Run work in one transaction, as `Store.atomically` promises."""

    @abstractmethod
    async def _new_key(self) -> int:
        """Return an unused ID."""

    async def put_template(self, template: NewTemplate) -> Template:
        return await self.atomically(lambda tx: tx._put_template(template))

    async def _put_template(self, template: NewTemplate) -> Template:
        await self.lock_trees([_lock_of(template)])
        newest = await self.templates(template.tenant_id, name=template.name, limit=1)
        if newest and newest[0].hash == template.hash:
            return newest[0]
        version = newest[0].version + 1 if newest else 1
        values = {**template._asdict(), "hash": template.hash, "version": version, "id": await self._new_key()}
        return Template(*(await self._tell("put_template", **values))[0])

    async def lock_trees(self, trees: Sequence[int]) -> None:
        """Lock one tree at a time, in an order that all callers share, so that no two deadlock."""
        for tree in sorted(set(trees)):
            await self._tell("lock_tree", tree=tree)

    async def open_gate(self, gate: NewGate) -> Approval:
        return await self.atomically(lambda tx: tx._open_gate(gate))

    async def _open_gate(self, gate: NewGate) -> Approval:
        found = await self.gate(gate.tenant_id, gate.step_id)
        if found is not None and found.decision is None:
            if found.digest == gate.digest:
                return found
            await self._tell("withdraw_gate", tenant_id=gate.tenant_id, step_id=gate.step_id)
        await self._tell("open_gate", **gate._asdict(), id=await self._new_key())
        opened = await self.gate(gate.tenant_id, gate.step_id)
        assert opened is not None  # noqa: S101 - it was written just before, in the same transaction
        return opened

    async def close_gate(
        self, tenant_id: int, step: int, decision: str, by: str | None = None, comment: str | None = None
    ) -> Approval | None:
        which = {"tenant_id": tenant_id, "step_id": step, "decision": decision, "decided_by": by, "comment": comment}
        found = await self._tell("close_gate", **which)
        return Approval(*found[0]) if found else None


def _lock_of(template: NewTemplate) -> int:
    """Return a lock number for a template's name, so that its versions are numbered in sequence. IDs of flows are far
    larger, so they do not collide with it."""
    return int.from_bytes(f"{template.tenant_id} {template.name}".encode()[-4:].rjust(4, b"\0"), "big")


def as_json(values: Sequence[Any]) -> str:
    """Return a list as a parameter for SQLite."""
    return json.dumps(list(values))

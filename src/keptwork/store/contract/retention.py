"""The store's operations for retention, written once for both databases: what can be deleted, and the records of it.

Jobs, workers, and agent jobs are deleted one by one. An outermost flow or crew is deleted as a whole, with its steps,
the flows and crews inside, the approvals of its steps, and its webhook deliveries. The jobs of flows and crews have
their own retention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keptwork.core.lifecycles import CREW, RUN, WORKSTREAM, Lifecycle
from keptwork.store.contract.flows import FlowReads, FlowVerbs, Rows
from keptwork.store.contract.records import Expired, Expiry, Pruned

WHOLE = (RUN, WORKSTREAM, CREW)
"""The lifecycles whose entities are deleted with everything inside them, or not at all."""

ANY_SIZE = 1_000
"""The weight of such a write. It is high enough that the write never runs on the caller's thread, even for one flow."""


@dataclass(slots=True)
class Retinue:
    """An outermost flow or crew with everything inside it, by table. `ended` means that all of it has ended."""

    keys: dict[str, list[int]] = field(
        default_factory=lambda: {"runs": [], "workstreams": [], "steps": [], "crews": []}
    )
    ended: bool = True

    @property
    def rows(self) -> int:
        return sum(map(len, self.keys.values()))


class RetentionReads(FlowReads):
    """The read operations."""

    async def prunable(self, lifecycle: Lifecycle, expiry: Expiry, *, after: int = 0, limit: int = 1000) -> Expired:
        newest = max(expiry.before.values(), default=0)
        values = {**expiry.values, "after": after, "limit": limit, "newest": newest}
        return Expired.page(await self._ask(f"prunable_{lifecycle.table}", **values), limit)

    async def retinues(self, lifecycle: Lifecycle, ids: Sequence[int]) -> dict[int, int]:
        found = await self._retinues(lifecycle, ids)
        return {root: retinue.rows for root, retinue in found.items() if retinue.ended}

    async def pruned(self) -> list[Pruned]:
        return [Pruned(*row) for row in await self._ask("pruned")]

    async def _retinues(self, lifecycle: Lifecycle, ids: Iterable[int]) -> dict[int, Retinue]:
        """Collect everything inside these flows or crews, level by level. Each part is listed under the outermost
        one."""
        found = {root: Retinue() for root in ids}
        for root, retinue in found.items():
            retinue.keys[lifecycle.table].append(root)
        level = {root: root for root in found}
        crews = level if lifecycle is CREW else {}
        while level and lifecycle is not CREW:
            steps = await self._within(found, "steps", "steps_inside", level)
            crews |= await self._within(found, CREW.table, "crews_inside_steps", steps)
            runs, streams = [
                await self._within(found, one.table, f"inside_{one.table}", steps) for one in (RUN, WORKSTREAM)
            ]
            level = runs | streams
        while crews:
            crews = await self._within(found, CREW.table, "crews_inside_crews", crews)
        return found

    async def _within(
        self, found: Mapping[int, Retinue], table: str, statement: str, around: Mapping[int, int]
    ) -> dict[int, int]:
        """Return what is directly inside these, with the outermost of each."""
        inside = {}
        for id, owner, unfinished in await self._ask(statement, ids=self._list(list(around))) if around else ():
            inside[id] = around[owner]
            found[around[owner]].keys[table].append(id)
            found[around[owner]].ended &= not unfinished
        return inside


class RetentionVerbs(RetentionReads, FlowVerbs):
    """The write operations."""

    async def prune(self, lifecycle: Lifecycle, ids: Sequence[int], expiry: Expiry) -> int:
        weight = ANY_SIZE if lifecycle in WHOLE else len(ids)
        return await self.atomically(lambda tx: tx._pruned(lifecycle, sorted(ids), expiry), weight)

    async def _pruned(self, lifecycle: Lifecycle, ids: Sequence[int], expiry: Expiry) -> int:
        if lifecycle in WHOLE:
            return await self._prune_whole(lifecycle, ids, expiry)
        taken = await self._tell(f"take_{lifecycle.table}", ids=self._list(ids), **expiry.values)
        await self._account_for(taken)
        return len(taken)

    async def _prune_whole(self, lifecycle: Lifecycle, ids: Sequence[int], expiry: Expiry) -> int:
        """Delete the flows or crews that no other transaction works on. The rest waits for a later sweep, so that no
        two callers deadlock."""
        seen = {row[0]: row[1] for row in await self._may_go(lifecycle, ids, expiry)}
        free = {row[0] for row in await self._tell("lock_free_trees", ids=self._list(sorted(set(seen.values()))))}
        going = await self._may_go(lifecycle, [id for id, tree in seen.items() if tree in free], expiry)
        found = await self._retinues(lifecycle, [row[0] for row in going])
        whole = {root: retinue for root, retinue in found.items() if retinue.ended}
        await self._take(list(whole.values()))
        owners = [(row[2], row[0]) for row in going if row[0] in whole]
        for tenant_id in sorted({tenant_id for tenant_id, _ in owners}):
            mine = [owner for tenant, owner in owners if tenant == tenant_id]
            await self._tell("drop_flow_budgets", tenant_id=tenant_id, ids=self._list(mine))
        return len(whole)

    async def _may_go(self, lifecycle: Lifecycle, ids: Sequence[int], expiry: Expiry) -> Rows:
        return await self._ask(f"may_go_{lifecycle.table}", ids=self._list(ids), **expiry.values)

    async def _take(self, retinues: Sequence[Retinue]) -> None:
        keys = {table: sorted(id for one in retinues for id in one.keys[table]) for table in Retinue().keys}
        told = {"drop_gates": keys["steps"], "drop_deliveries": keys["runs"] + keys["workstreams"]}
        for statement, which in told.items():
            if which:
                await self._tell(statement, ids=self._list(which))
        taken: list[Sequence[Any]] = []
        for table, which in keys.items():
            taken += await self._tell(f"take_{table}", ids=self._list(which)) if which else []
        await self._account_for(taken)

    async def _account_for(self, taken: Iterable[Sequence[Any]]) -> None:
        """Record the deleted rows of (tenant, entity, state, end time). All callers update the records in the same
        order."""
        rows: Counter[tuple[int, str, str]] = Counter()
        last: dict[tuple[int, str, str], int] = {}
        for tenant_id, entity, state, ended_at in taken:
            kind = (tenant_id, entity, state)
            rows[kind] += 1
            last[kind] = max(last.get(kind, 0), ended_at)
        for kind in sorted(rows):
            which = dict(zip(("tenant_id", "entity", "state"), kind, strict=True))
            await self._tell("account_for", **which, rows=rows[kind], before=last[kind] + 1)

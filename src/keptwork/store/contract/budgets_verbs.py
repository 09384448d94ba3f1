"""The store's operations on budgets, ledger calls, and token buckets, written once for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keptwork.store.contract.budgets import (
    LOST,
    NO_COST,
    Bucket,
    Budget,
    BudgetView,
    Charge,
    Closed,
    Closing,
    Cost,
    NewBudget,
    NewCharge,
    Sum,
)
from keptwork.store.contract.flows import FlowReads, FlowVerbs


class BudgetReads(FlowReads):
    """The read operations."""

    async def budgets(
        self, tenant_id: int, *, scope: str | None = None, after: tuple[str, int] | None = None, limit: int = 100
    ) -> list[BudgetView]:
        last = {"after_scope": after and after[0], "after_owner": after and after[1]}
        found = await self._ask("budgets", tenant_id=tenant_id, scope=scope, **last, limit=limit)
        return [_view(row) for row in found]

    async def budget(self, tenant_id: int, owner: int) -> BudgetView | None:
        found = await self._ask("budget", tenant_id=tenant_id, owner=owner)
        return _view(found[0]) if found else None

    async def next_hold(self, after: tuple[int, str] = (0, "")) -> tuple[int, str] | None:
        found = await self._ask("next_hold", tenant_id=after[0], hold=after[1])
        return (found[0][0], found[0][1]) if found else None

    async def charge(self, id: int) -> Charge | None:
        found = await self._ask("charge", id=id)
        return Charge(*found[0]) if found else None

    async def open_charges(self, job: int, call: str | None = None) -> list[Charge]:
        return [Charge(*row) for row in await self._ask("open_charges", job_id=job, call=call)]

    async def charges(
        self,
        tenant_id: int,
        *,
        job: int | None = None,
        tree: int | None = None,
        day: int | None = None,
        state: str | None = None,
        limit: int = 100,
    ) -> list[Charge]:
        which = {"tenant_id": tenant_id, "state": state, "limit": limit}
        if job is not None:
            found = await self._ask("charges_of_job", **which, job_id=job)
        elif tree is not None:
            found = await self._ask("charges_of_tree", **which, tree_id=tree)
        elif day is not None:
            found = await self._ask("charges_of_day", **which, day=day)
        else:
            found = await self._ask("charges", **which)
        return [Charge(*row) for row in found]

    async def charges_in_flight(self, jobs: Sequence[int]) -> list[Charge]:
        return [Charge(*row) for row in await self._ask("charges_in_flight", ids=self._list(jobs))]

    async def uncertain(self, budget: Budget) -> dict[str, Sum]:
        which = {"tenant_id": budget.tenant_id, "scope": budget.scope, "owner": budget.owner}
        return {state: Sum(*rest) for state, *rest in await self._ask("uncertain", **which)}

    async def step_costs(self, flow: int, tree: int) -> dict[int, Cost]:
        found = await self._ask("step_costs", flow_id=flow, tree_id=tree)
        return {step: Cost(str(step), *sums) for step, *sums in found}

    async def tree_cost(self, tenant_id: int, tree: int) -> Cost:
        found = await self._ask("tree_costs", tenant_id=tenant_id, tree_id=tree)
        return Cost(str(tree), *found[0][1:]) if found else NO_COST

    async def abandoned_charges(self, limit: int) -> list[Charge]:
        return [Charge(*row) for row in await self._ask("abandoned_charges", limit=limit)]

    async def costs(self, by: str, tenant_id: int | None, since: int = 0, limit: int = 1000) -> list[Cost]:
        found = await self._ask("costs", by=by, tenant_id=tenant_id, since=since, limit=limit)
        return [Cost(*row) for row in found]

    async def bucket(self, provider: str, model: str) -> Bucket | None:
        found = await self._ask("bucket", provider=provider, model=model)
        return Bucket(*found[0]) if found else None


class BudgetVerbs(BudgetReads, FlowVerbs):
    """The write operations."""

    async def make_budgets(self, budgets: Sequence[NewBudget]) -> None:
        await self.atomically(lambda tx: tx._make_budgets(budgets))

    async def _make_budgets(self, budgets: Sequence[NewBudget]) -> None:
        """Create budgets in the order in which they are locked, so that no two callers deadlock."""
        for budget in sorted(budgets, key=lambda one: (one.tenant_id, -one.owner)):
            await self._tell("make_budget", **budget._asdict())

    async def lock_budgets(self, tenant_id: int, owners: Sequence[int]) -> list[Budget]:
        found = await self._tell("lock_budgets", tenant_id=tenant_id, ids=self._list(sorted(owners)))
        return [Budget(*row) for row in found]

    async def keep_budget(self, budget: Budget) -> None:
        left_out = ("scope", "subject", "spent_micros", "reserved_micros", "created_at", "updated_at")
        values = {name: value for name, value in budget._asdict().items() if name not in left_out}
        await self._tell("keep_budget", **values)

    async def forget_budgets(self, older_than: int, limit: int = 500) -> int:
        return len(await self._tell("forget_budgets", older_than=older_than, limit=limit))

    async def lock_jobs(self, jobs: Sequence[int]) -> dict[int, tuple[int, int | None]]:
        return {row[0]: (row[1], row[2]) for row in await self._tell("lock_jobs", ids=self._list(jobs))}

    async def open_charge(self, charge: NewCharge) -> int:
        return await self.atomically(lambda tx: tx._open_charge(charge))

    async def _open_charge(self, charge: NewCharge) -> int:
        made = await self._tell("open_charge", **charge._asdict(), id=await self._new_key())
        if not made:
            return (await self.open_charges(charge.job_id, charge.call))[0].id
        await self._count_money(charge, charge.ceiling_micros, 0)
        return int(made[0][0])

    async def close_charge(self, id: int, closing: Closing) -> Closed | None:
        return await self.atomically(lambda tx: tx._close_charge(id, closing))

    async def _close_charge(self, id: int, closing: Closing) -> Closed | None:
        """Close a call. Its job is locked first, then its budgets, then the call, as in a reservation."""
        found = await self._tell("charge_to_close", id=id)
        if not found:
            return None
        charge = Charge(*found[0])
        await self.lock_budgets(charge.tenant_id, charge.owners)
        closed = await self._tell("close_charge", id=id, **closing._asdict())
        freed, spent = charge.ceiling_micros, closing.cost_micros
        if not closed and closing.state != LOST:
            closed = await self._tell("correct_charge", id=id, **closing._asdict())
            freed, spent = 0, closing.cost_micros - charge.ceiling_micros
        if not closed:
            return None
        await self._tell("agent_totals", job_id=charge.job_id)
        return Closed(Charge(*closed[0]), await self._count_money(charge, -freed, spent))

    async def _count_money(self, charge: NewCharge | Charge, reserved: int, spent: int) -> list[Budget]:
        sums = {"reserved": reserved, "spent": spent}
        found = await self._tell("count_money", tenant_id=charge.tenant_id, ids=self._list(charge.owners), **sums)
        return sorted((Budget(*row) for row in found), key=lambda budget: -budget.owner)

    async def lock_bucket(self, provider: str, model: str) -> Bucket:
        return await self.atomically(lambda tx: tx._lock_bucket(provider, model))

    async def _lock_bucket(self, provider: str, model: str) -> Bucket:
        await self._tell("make_bucket", provider=provider, model=model)
        return Bucket(*(await self._tell("lock_bucket", provider=provider, model=model))[0])

    async def keep_bucket(self, bucket: Bucket) -> None:
        await self._tell("keep_bucket", **bucket._asdict())


def _view(row: Sequence[Any]) -> BudgetView:
    return BudgetView(Budget(*row[:-1]), row[-1])

"""The store's operations on crews, written once for both databases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from keptwork.core.lifecycles import CREW
from keptwork.store.contract.crews import InLine, Quota, waits_for_crew
from keptwork.store.contract.flows import FlowReads, FlowVerbs
from keptwork.store.contract.records import Job


class CrewReads(FlowReads):
    """The read operations."""

    async def crew_by_key(self, tenant_id: int, key: str) -> int | None:
        found = await self._ask("crew_by_key", tenant_id=tenant_id, key=key)
        return found[0][0] if found else None

    async def crews(
        self,
        tenant_id: int,
        *,
        states: Sequence[str] | None = None,
        inside: bool = False,
        after: int | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        wanted = {"names": None if states is None else self._list(states), "inside": int(inside)}
        found = await self._ask("listed_crews", tenant_id=tenant_id, **wanted, after=after, limit=limit)
        return await self._in_order(CREW, found)

    async def shares(self, crews: Sequence[int], *, unfinished_only: bool = False) -> list[Job]:
        found = await self._ask("shares", ids=self._list(crews), unfinished=int(unfinished_only))
        return [Job(*row) for row in found]

    async def subcrews(self, crews: Sequence[int], *, unfinished_only: bool = False) -> list[dict[str, Any]]:
        found = await self._ask("subcrews", ids=self._list(crews), unfinished=int(unfinished_only))
        return await self._in_order(CREW, found)

    async def crews_of_step(self, step: int) -> list[dict[str, Any]]:
        return await self._in_order(CREW, await self._ask("crews_of_step", step_id=step))

    async def quotas(self, tenant_id: int) -> list[Quota]:
        found = await self._ask("quotas", tenant_id=tenant_id)
        return [Quota(depth, most, used, bool(in_line)) for depth, most, used, in_line in found]

    async def in_line(self, tenant_id: int, depth: int, most: int, limit: int) -> InLine:
        which = {"tenant_id": tenant_id, "depth": depth, "limit": limit}
        shares = await self._ask("shares_in_line", **which)
        crews = await self._ask("crews_in_line", **which, most=most)
        return InLine([row[0] for row in shares], [(row[0], row[1]) for row in crews])

    async def crew_tenants(self) -> list[int]:
        return [row[0] for row in await self._ask("crew_tenants")]

    async def crews_amiss(self, limit: int) -> list[tuple[int, int]]:
        return [(row[0], row[1]) for row in await self._ask("crews_amiss", limit=limit)]

    async def outlived_crews(self, limit: int) -> list[tuple[int, int]]:
        return [(row[0], row[1]) for row in await self._ask("outlived_crews", limit=limit)]

    async def forgotten_askers(self, tenant_id: int, limit: int) -> list[tuple[int, str]]:
        found = await self._ask("forgotten_askers", tenant_id=tenant_id, limit=limit)
        return [(row[0], row[1]) for row in found]


class CrewVerbs(CrewReads, FlowVerbs):
    """The write operations."""

    @abstractmethod
    async def _announce(self) -> None:
        """Notify waiting workers when the transaction commits."""

    async def set_quotas(self, tenant_id: int, most: Mapping[int, int]) -> None:
        await self.atomically(lambda tx: tx._set_quotas(tenant_id, most))

    async def _set_quotas(self, tenant_id: int, most: Mapping[int, int]) -> None:
        for depth, workers in sorted(most.items()):
            await self._tell("set_quota", tenant_id=tenant_id, depth=depth, most=workers)

    async def go_on(self, shares: Sequence[int]) -> int:
        return await self.atomically(lambda tx: tx._go_on(shares))

    async def _go_on(self, shares: Sequence[int]) -> int:
        gone = await self._tell("go_on", ids=self._list(sorted(shares)))
        if limited := [id for id, limit_key in gone if limit_key is not None]:
            await self._tell("look_at_limits_of", ids=self._list(limited))
        if gone:
            await self._announce()
        return len(gone)

    async def wake_for_crews(self, jobs: Sequence[int], crews: Sequence[int]) -> int:
        return await self.atomically(lambda tx: tx._wake_for_crews(jobs, crews))

    async def _wake_for_crews(self, jobs: Sequence[int], crews: Sequence[int]) -> int:
        names = self._list([waits_for_crew(crew) for crew in crews])
        woken = await self._tell("wake_for_crews", ids=self._list(sorted(jobs)), names=names)
        if woken:
            await self._announce()
        return len(woken)

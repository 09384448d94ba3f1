"""The store's operations on webhook deliveries, written once for both databases."""

from __future__ import annotations

from keptwork.store.contract.flows import FlowReads, FlowVerbs
from keptwork.store.contract.outbox import MOST_ATTEMPTS, Delivery, NewDelivery


class OutboxReads(FlowReads):
    """The read operations."""

    async def delivery(self, tenant_id: int, entity: str, id: int, seq: int) -> Delivery | None:
        found = await self._ask("delivery", tenant_id=tenant_id, entity=entity, entity_id=id, seq=seq)
        return Delivery(*found[0]) if found else None

    async def deliveries(
        self,
        tenant_id: int,
        *,
        flow: int | None = None,
        state: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[Delivery]:
        which = {"flow": flow, "state": state, "after": after, "limit": limit}
        return [Delivery(*row) for row in await self._ask("deliveries", tenant_id=tenant_id, **which)]

    async def next_delivery(self) -> int | None:
        wait_us: int | None = (await self._ask("next_delivery"))[0][0]
        return wait_us


class OutboxVerbs(OutboxReads, FlowVerbs):
    """The write operations."""

    async def put_delivery(self, delivery: NewDelivery) -> None:
        await self._tell("put_delivery", **delivery._asdict(), id=await self._new_key())

    async def take_deliveries(self, limit: int, lease_us: int) -> list[Delivery]:
        taken = [Delivery(*row) for row in await self._tell("take_deliveries", limit=limit, lease_us=lease_us)]
        return sorted(taken, key=lambda one: one.id)

    async def settle_delivery(self, taken: Delivery, state: str, delay_us: int = 0, error: str | None = None) -> bool:
        said = {"state": state, "delay_us": delay_us, "error": error}
        return bool(await self._tell("settle_delivery", id=taken.id, attempts=taken.attempts, **said))

    async def retry_delivery(self, tenant_id: int, id: int) -> bool:
        return bool(await self._tell("retry_delivery", tenant_id=tenant_id, id=id, more=MOST_ATTEMPTS))

    async def forget_deliveries(self, older_than: int, limit: int = 500) -> int:
        return len(await self._tell("forget_deliveries", older_than=older_than, limit=limit))

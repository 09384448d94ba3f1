"""The store's operations on the seals of the log, written once for both databases."""

from __future__ import annotations

from keptwork.store.contract.events_seals import NewSeal, Seal
from keptwork.store.contract.flows import FlowReads, FlowVerbs


class SealReads(FlowReads):
    """The read operations."""

    async def seals(self, *, after: int = 0, limit: int = 100) -> list[Seal]:
        return [Seal(*row) for row in await self._ask("seals", after=after, limit=limit)]

    async def last_seal(self) -> Seal | None:
        found = await self._ask("last_seal")
        return Seal(*found[0]) if found else None


class SealVerbs(SealReads, FlowVerbs):
    """The write operations."""

    async def put_seal(self, seal: NewSeal) -> bool:
        return bool(await self._tell("put_seal", **seal._asdict()))

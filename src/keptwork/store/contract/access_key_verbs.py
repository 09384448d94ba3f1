"""The store's operations on API keys and tenants' request limits, written once for both databases."""

from __future__ import annotations

from keptwork.store.contract.access import ApiKeyRow, LiveApiKey, NewApiKey
from keptwork.store.contract.flows import FlowReads, FlowVerbs, Rows

MOST_LIMIT_KEYS = 10_000
"""The maximum number of limit keys to search for waiting jobs."""


class KeyReads(FlowReads):
    """The read operations."""

    async def live_api_key(self, hash: str) -> LiveApiKey | None:
        found = await self._ask("live_api_key", hash=hash)
        return LiveApiKey(ApiKeyRow(*found[0][:-1]), found[0][-1]) if found else None

    async def api_key(self, tenant_id: int, id: int) -> ApiKeyRow | None:
        found = await self._ask("api_key", tenant_id=tenant_id, id=id)
        return ApiKeyRow(*found[0]) if found else None

    async def api_keys(
        self, tenant_id: int, *, ended: bool = False, after: int | None = None, limit: int = 100
    ) -> list[ApiKeyRow]:
        which = {"tenant_id": tenant_id, "ended": int(ended), "after": after, "limit": limit}
        return [ApiKeyRow(*row) for row in await self._ask("api_keys", **which)]

    async def tenant_limits(self, tenant_id: int) -> str | None:
        found = await self._ask("tenant_limits", tenant_id=tenant_id)
        return found[0][0] if found else None

    async def waiting_jobs(self, tenant_id: int, most: int) -> int:
        which = {"tenant_id": tenant_id, "most": most, "most_keys": MOST_LIMIT_KEYS}
        kinds = ("waiting_in_queues", "waiting_and_held", "waiting_for_limits")
        return min(most, sum([int((await self._ask(kind, **which))[0][0]) for kind in kinds]))


class KeyVerbs(KeyReads, FlowVerbs):
    """The write operations."""

    async def set_tenant_limits(self, tenant_id: int, limits: str | None) -> bool:
        return bool(await self._tell("set_tenant_limits", tenant_id=tenant_id, limits=limits))

    async def put_api_key(self, key: NewApiKey) -> ApiKeyRow:
        return await self.atomically(lambda tx: tx._put_api_key(key))

    async def _put_api_key(self, key: NewApiKey, id: int | None = None) -> ApiKeyRow:
        """Store a key. If a repeated request follows a lost response, return the stored key."""
        made = await self._new_key() if id is None else id
        added = await self._tell("put_api_key", id=made, **key._asdict())
        return ApiKeyRow(*(added or await self._kept(key))[0])

    async def rotate_api_key(self, id: int, key: NewApiKey, overlap_us: int) -> ApiKeyRow | None:
        return await self.atomically(lambda tx: tx._rotate_api_key(id, key, overlap_us))

    async def _rotate_api_key(self, id: int, key: NewApiKey, overlap_us: int) -> ApiKeyRow | None:
        """Rotate a key. The update of the old key locks it, so that only one of several concurrent rotations
        succeeds."""
        made = await self._new_key()
        which = {"tenant_id": key.tenant_id, "id": id, "replaced_by": made, "overlap_us": overlap_us}
        if await self._tell("replace_api_key", **which):
            return await self._put_api_key(key, made)
        kept = await self._kept(key)
        return ApiKeyRow(*kept[0]) if kept else None

    async def _kept(self, key: NewApiKey) -> Rows:
        return await self._ask("api_key_by_hash", tenant_id=key.tenant_id, hash=key.hash)

    async def revoke_api_key(self, tenant_id: int, id: int, by: str) -> ApiKeyRow | None:
        return await self.atomically(lambda tx: tx._revoke_api_key(tenant_id, id, by))

    async def _revoke_api_key(self, tenant_id: int, id: int, by: str) -> ApiKeyRow | None:
        await self._tell("revoke_api_key", tenant_id=tenant_id, id=id, by=by)
        return await self.api_key(tenant_id, id)

    async def touch_api_key(self, tenant_id: int, id: int, every_us: int) -> bool:
        return bool(await self._tell("touch_api_key", tenant_id=tenant_id, id=id, every_us=every_us))

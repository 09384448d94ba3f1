"""Read content that is stored by its hash."""

from __future__ import annotations

from typing import Any

from keptwork.errors import Damaged
from keptwork.store import Blob, Reader


async def content_of(store: Reader, tenant_id: int, hash: str) -> bytes:
    """Return the content with this hash. Raise `Damaged` if it is missing or has changed."""
    content = await store.blob(tenant_id, hash)
    if content is None:
        raise Damaged(path=_place(store), detail=f"the content sha256:{hash} is gone")
    if Blob.of(content).hash != hash:
        raise Damaged(path=_place(store), detail=f"the content sha256:{hash} has changed")
    return content


async def whole(store: Reader, row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a job or crew with its result, even if that is stored as a blob."""
    if row["result_hash"] is None:
        return row
    return {**row, "result": (await content_of(store, row["tenant_id"], row["result_hash"])).decode()}


def _place(store: Reader) -> str:
    """Return the URL of the database, or a general name inside a transaction."""
    return str(getattr(store, "url", "the database"))

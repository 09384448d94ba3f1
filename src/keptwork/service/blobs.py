"""Content that is kept by its hash, as those meet it who read."""

from __future__ import annotations

from typing import Any

from keptwork.errors import Damaged
from keptwork.store import Blob, Reader


async def content_of(store: Reader, tenant_id: int, hash: str) -> bytes:
    """The content something refers to. That it is gone, or is no longer what was kept, is the database's damage."""
    content = await store.blob(tenant_id, hash)
    if content is None:
        raise Damaged(path=_place(store), detail=f"the content sha256:{hash} is gone")
    if Blob.of(content).hash != hash:
        raise Damaged(path=_place(store), detail=f"the content sha256:{hash} has changed")
    return content


async def whole(store: Reader, row: dict[str, Any]) -> dict[str, Any]:
    """The row of a job with its result in it, also where that is kept as a blob."""
    if row["result_hash"] is None:
        return row
    return {**row, "result": (await content_of(store, row["tenant_id"], row["result_hash"])).decode()}


def _place(store: Reader) -> str:
    """Which database that is; inside a transaction its name is not at hand."""
    return str(getattr(store, "url", "the database"))

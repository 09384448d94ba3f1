"""Stores content by its hash on PostgreSQL, in batches. Content in use is locked, so that it cannot be deleted
meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import asyncpg

from keptwork.core.decide import Change
from keptwork.core.lifecycles import JOB
from keptwork.errors import LeaseLost
from keptwork.store.contract.checkpoints_blobs import Artifact, Blob
from keptwork.store.contract.records import Job

Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]
"""A function that runs a named statement in the transaction."""

Owned = tuple[int, Blob]
"""A tenant and its content."""

MOST_BYTES = 32 << 20  # per statement; a message must fit into the server's memory and is limited to 1 GB


async def keep_results(fetch: Fetch, large: Sequence[tuple[Change, Blob]]) -> None:
    """Store the large results of jobs that have just succeeded."""
    if not large:
        return
    await keep(fetch, [(change.tenant_id, blob) for change, blob in large])
    await fetch(
        "refer_to_blobs",
        id=[change.id for change, _ in large],
        tenant_id=[change.tenant_id for change, _ in large],
        hash=[blob.hash for _, blob in large],
    )


async def keep_artifact(fetch: Fetch, job: Job, name: str, blob: Blob, media_type: str) -> Artifact:
    """Store an artifact. The content is sent first, because no row lock then blocks the renewal of the lease
    meanwhile."""
    await keep(fetch, [(job.tenant_id, blob)])
    rows = await fetch("keep_artifact", **job.claim, name=name, media_type=media_type, hash=blob.hash, size=blob.size)
    if not rows:
        raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="keep")
    return Artifact(name, media_type, blob.size, blob.hash, job.epoch, rows[0][0])


async def drop(fetch: Fetch, found: Iterable[Sequence[object]]) -> int:
    """Delete those of these blobs that are still unused when nothing can refer to them any more."""
    locked = await fetch("lock_blobs", **_columns(found))
    return len(await fetch("drop_blobs", **_columns(locked)))


async def keep(fetch: Fetch, owned: Iterable[Owned]) -> None:
    """Store content once. Content that exists is not sent again, but locked, so that it stays."""
    wanted = {(tenant_id, blob.hash): blob for tenant_id, blob in owned}
    there = {tuple(row) for row in await fetch("blobs_kept", **_columns(wanted))}
    new = [(tenant_id, blob) for (tenant_id, hash), blob in sorted(wanted.items()) if (tenant_id, hash) not in there]
    for some in _portions(new):
        await fetch(
            "keep_blobs",
            tenant_id=[tenant_id for tenant_id, _ in some],
            hash=[blob.hash for _, blob in some],
            size=[blob.size for _, blob in some],
            content=[blob.content for _, blob in some],
        )


def _portions(owned: Sequence[Owned]) -> Iterator[list[Owned]]:
    portion: list[Owned] = []
    room = MOST_BYTES
    for one in owned:
        if portion and one[1].size > room:
            yield portion
            portion, room = [], MOST_BYTES
        portion.append(one)
        room -= one[1].size
    if portion:
        yield portion


def _columns(keys: Iterable[Sequence[object]]) -> dict[str, list[object]]:
    rows = list(keys)
    return {"tenant_id": [row[0] for row in rows], "hash": [row[1] for row in rows]}

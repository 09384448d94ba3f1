"""Stores the results of steps on PostgreSQL, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keptwork.store.contract.checkpoints import PROGRESS, Report, Save, columns
from keptwork.store.postgres import side_writes_blobs
from keptwork.store.postgres.side_writes_blobs import Fetch


async def keep(fetch: Fetch, saves: Sequence[Save]) -> list[str | None]:
    """Return the result that counts for each save, or None if the claim no longer holds the job. Content is sent first,
    because no row lock then blocks the renewal of the lease meanwhile."""
    large = [(save.job.tenant_id, save.blob) for save in saves if save.blob is not None]
    if large:
        await side_writes_blobs.keep(fetch, large)
    given: dict[str, Any] = columns(sorted(saves, key=lambda save: save.job.id))  # rows are locked in this order
    if len(saves) == 1 and await fetch("new_checkpoint", **{name: column[0] for name, column in given.items()}):
        return [saves[0].result]
    rows = {(job, name): new for job, name, new in await fetch("checkpoint", **given)}
    return [await _stands(fetch, save, rows.get((save.job.id, save.name))) for save in saves]


async def note_progress(fetch: Fetch, reports: Sequence[Report], ttl_us: int) -> None:
    """Store the progress of jobs."""
    given: dict[str, Any] = {
        "job_id": [report.job.id for report in reports],
        "epoch": [report.job.epoch for report in reports],
        "owner": [report.job.owner for report in reports],
        "payload": [report.payload for report in reports],
    }
    await fetch("note_progress", **given, kind=PROGRESS, ttl_us=ttl_us)


async def _stands(fetch: Fetch, save: Save, new: bool | None) -> str | None:
    if new is None:
        return None
    if new:
        return save.result
    rows = await fetch("checkpoints", tenant_id=save.job.tenant_id, job_id=save.job.id)
    return next(str(result) for name, result, *_ in rows if name == save.name)

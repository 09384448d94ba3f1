"""Backups: write one while work continues, and restore one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from keptwork.jobs import limits, schedules
from keptwork.store import open_store
from keptwork.store.backup import Backup, Restored
from keptwork.store.url import DatabaseUrl, database_url

DEFAULT_QUEUE = "default"


async def back_up(url: str | None, file: Path) -> Backup:
    """Write a snapshot of the database into a new file, and compare the file with it."""
    target = database_url(url)
    if target.dialect == "sqlite":
        from keptwork.store.sqlite import backup as sqlite_backup

        return await asyncio.to_thread(sqlite_backup.back_up, target, file)
    from keptwork.store.postgres import backup

    return await backup.back_up(target, file)


async def restore(url: str | None, file: Path, *, paused: bool = False) -> Restored:
    """Replace the database by a verified backup. With `paused`, its jobs wait until an operator resumes them."""
    target = database_url(url)
    restored = await _restored(target, file)
    if paused:
        await pause_everything(target)
    return restored


async def pause_everything(target: DatabaseUrl) -> None:
    """Pause every queue and every schedule of every tenant."""
    store = await open_store(target.text, create=False)
    try:
        for tenant in await store.tenants():
            for name in {DEFAULT_QUEUE, *(queue.name for queue in await limits.list_queues(store, tenant.id))}:
                await limits.pause(store, tenant.id, name)
            for schedule in await store.schedules(tenant.id):
                await schedules.pause(store, tenant.id, schedule.name)
    finally:
        await store.close()


async def _restored(target: DatabaseUrl, file: Path) -> Restored:
    if target.dialect == "sqlite":
        from keptwork.store.sqlite import backup as sqlite_backup

        return await asyncio.to_thread(sqlite_backup.restore, target, file)
    from keptwork.store.postgres import backup

    return await backup.restore(target, file)

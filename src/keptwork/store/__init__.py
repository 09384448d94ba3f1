"""Databases that store entities and their events. `open_store` opens SQLite or PostgreSQL by URL."""

from __future__ import annotations

from keptwork.core.clock import Clock
from keptwork.errors import MissingDriver
from keptwork.store.contract.checkpoints_blobs import Artifact, Blob
from keptwork.store.contract.records import Event, EventFilter, Job, JobFilter, NewJob, QueueSummary
from keptwork.store.contract.store import Reader, Store, Transaction
from keptwork.store.counters import Tally
from keptwork.store.url import database_url

__all__ = [
    "Artifact",
    "Blob",
    "Event",
    "EventFilter",
    "Job",
    "JobFilter",
    "NewJob",
    "QueueSummary",
    "Reader",
    "Store",
    "Transaction",
    "open_store",
]


async def open_store(
    url: str | None = None,
    *,
    migrate: bool | None = None,
    create: bool = True,
    clock: Clock | None = None,
    tally: Tally | None = None,
) -> Store:
    """Open a database, and create it if it does not exist.

    With `create=False`, a missing database raises `NoDatabase` or `NotMigrated`. `migrate` decides whether an older
    schema is migrated or rejected with `NotMigrated`. By default, a SQLite file is migrated, but a PostgreSQL database
    is rejected because programs on several machines use it. A schema newer than this program is always rejected. Stores
    of one process can share a `tally` of their operations.
    """
    target = database_url(url)
    if target.dialect == "sqlite":
        from keptwork.store.sqlite.store import SqliteStore

        return await SqliteStore.open(target, migrate=migrate is not False, create=create, clock=clock, tally=tally)
    try:
        from keptwork.store.postgres.store import PostgresStore
    except ModuleNotFoundError as missing:
        raise MissingDriver(url=target.shown) from missing
    return await PostgresStore.open(target, migrate=migrate is True, create=create, tally=tally)

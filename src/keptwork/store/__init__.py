"""Stores: where entities and their events are kept. `open_store` opens either kind by its URL."""

from __future__ import annotations

from keptwork.clock import Clock
from keptwork.errors import MissingDriver
from keptwork.store.blobs import Artifact, Blob
from keptwork.store.protocol import Reader, Store, Transaction
from keptwork.store.records import Event, EventFilter, Job, JobFilter, NewJob, QueueSummary
from keptwork.store.tally import Tally
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

    With `create=False` a missing database is refused with `NoDatabase` or `NotMigrated`. `migrate` decides about an
    older schema: it is brought up to date, or refused with `NotMigrated`. By default a SQLite file is brought up to
    date and a PostgreSQL database is refused, because the programs of a whole fleet use it. A schema newer than this
    program is always refused. Stores of one process may share a `tally` of their operations.
    """
    target = database_url(url)
    if target.dialect == "sqlite":
        from keptwork.store.sqlite import SqliteStore

        return await SqliteStore.open(target, migrate=migrate is not False, create=create, clock=clock, tally=tally)
    try:
        from keptwork.store.postgres import PostgresStore
    except ModuleNotFoundError as missing:
        raise MissingDriver(url=target.shown) from missing
    return await PostgresStore.open(target, migrate=migrate is True, create=create, tally=tally)

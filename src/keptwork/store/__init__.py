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
    migrate: bool = True,
    create: bool = True,
    clock: Clock | None = None,
    tally: Tally | None = None,
) -> Store:
    """Open a database, bringing its schema up to date unless told not to.

    With `create=False` one that is not there yet is refused with `NoDatabase`, without `migrate` one that is behind
    with `NotMigrated`; one that is ahead of this program is refused in any case. Stores of one process may share a
    `tally` of what they are asked.
    """
    target = database_url(url)
    if target.dialect == "sqlite":
        from keptwork.store.sqlite import SqliteStore

        return await SqliteStore.open(target, migrate=migrate, create=create, clock=clock, tally=tally)
    try:
        from keptwork.store.postgres import PostgresStore
    except ModuleNotFoundError as missing:
        raise MissingDriver(url=target.shown) from missing
    return await PostgresStore.open(target, migrate=migrate, create=create, tally=tally)

"""Migrates a database to the schema of this program, or lists the pending migrations."""

from __future__ import annotations

import asyncio
import threading

from keptwork.errors import MissingDriver, NewerDatabase
from keptwork.store.dialect import SQLITE
from keptwork.store.migrations import Migration, Tell, log, migrations, newest
from keptwork.store.url import DatabaseUrl


async def pending(url: DatabaseUrl) -> list[Migration]:
    """Return the migrations that the database still needs, oldest first. Change nothing, and create no file."""
    if url.dialect == "sqlite":
        return await asyncio.to_thread(_sqlite, url, False)
    return await _postgres(url, apply=False)


async def upgrade(url: DatabaseUrl, tell: Tell = log.warning) -> list[Migration]:
    """Create the database if necessary, apply the pending migrations, and return them. `tell` receives one line for
    each session that is waited for, and one line about where an interruption stopped the migration."""
    if url.dialect == "sqlite":
        return await _sqlite_until_cancelled(url, tell)
    return await _postgres(url, apply=True, tell=tell)


async def restore_access(url: DatabaseUrl, tell: Tell = log.warning) -> list[str]:
    """Restore row-level security's policies and grants on PostgreSQL. Return the names of those that differ now."""
    if url.dialect == "sqlite":
        return []
    from keptwork.store.postgres import connections_server, migrate, row_security

    connection = await connections_server.connect(url)
    try:
        with connections_server.explained(url):
            if await migrate.applied(connection) == 0:
                return []
            return await row_security.restore_access(connection, tell)
    finally:
        await connection.close()


async def restore_guards(url: DatabaseUrl, tell: Tell = log.warning) -> list[str]:
    """Restore guards that were dropped, changed, or disabled, and return their names. The database must be up to
    date."""
    if url.dialect == "sqlite":
        return await asyncio.to_thread(_restore_sqlite, url)
    from keptwork.store.postgres import connections_server, migrate_faults

    connection = await connections_server.connect(url)
    try:
        with connections_server.explained(url):
            return await migrate_faults.restore_guards(connection, tell)
    finally:
        await connection.close()


def _restore_sqlite(url: DatabaseUrl) -> list[str]:
    from keptwork.store.sqlite import file, file_faults

    db = file.connect(url.path, create=False, shared=url.shared)
    try:
        with file.explained(url.path):
            return file_faults.restore_guards(db)
    finally:
        db.close()


async def _sqlite_until_cancelled(url: DatabaseUrl, tell: Tell) -> list[Migration]:
    """Migrate in a thread, and end it between two statements if the caller is cancelled."""
    cancelled = threading.Event()
    migrating = asyncio.create_task(asyncio.to_thread(_sqlite, url, True, tell, cancelled))
    try:
        return await asyncio.shield(migrating)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([migrating])
        raise


def _sqlite(
    url: DatabaseUrl, apply: bool, tell: Tell = log.warning, cancelled: threading.Event | None = None
) -> list[Migration]:
    from keptwork.store.sqlite import file, file_migrate

    if not apply and file.is_missing(url.path):
        return list(migrations(SQLITE))
    db = file.connect(url.path, create=apply, shared=url.shared)

    def execute(sql: str) -> object:
        if cancelled is not None and cancelled.is_set():
            raise asyncio.CancelledError
        return db.execute(sql)

    try:
        with file.explained(url.path):
            _refuse_newer(url, file_migrate.applied(db))
            return file_migrate.migrate_file(db, execute, tell) if apply else file_migrate.pending(db)
    finally:
        db.close()


async def _postgres(url: DatabaseUrl, *, apply: bool, tell: Tell = log.warning) -> list[Migration]:
    try:
        from keptwork.store.postgres import connections_server, migrate, row_security
    except ModuleNotFoundError as missing:
        raise MissingDriver(url=url.shown) from missing
    connection = await connections_server.connect(url)
    try:
        with connections_server.explained(url):
            await migrate.refuse_foreign(connection)
            _refuse_newer(url, found := await migrate.applied(connection))
            if not apply:
                return await migrate.pending(connection)
            if found:
                await row_security.refuse_unseen(connection, url)  # a migration would skip rows that it cannot see
            return await migrate.migrate_database(connection, tell=tell)
    finally:
        await connection.close()


def _refuse_newer(url: DatabaseUrl, found: int) -> None:
    if found > newest():
        raise NewerDatabase(url=url.shown, found=found, needed=newest())

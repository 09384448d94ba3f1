"""Dumps a PostgreSQL database as of one moment, and restores a dump under another owner or in another cluster.

Row-level security is forced on Keptwork's tables. So a login that is neither a superuser nor covered by the policy of
the engine sees no rows, and its dump would be empty without an error. Therefore all row counts are compared: the
database with the file, and the file with the restored database.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import asyncpg

from keptwork.errors import BadBackup, CannotWriteFile, NotBackedUp, NotPermitted, RestoredOtherwise
from keptwork.store.backup import Backup, Restored, differences
from keptwork.store.postgres import connections_server, migrate, row_security
from keptwork.store.postgres.backup_programs import Program, program
from keptwork.store.url import DatabaseUrl

MAGIC = b"PGDMP"
HISTORY, TENANTS = "keptwork_migrations", "tenants"

_TABLES = """SELECT format('%I.%I', n.nspname, c.relname), row_security_active(c.oid) AND NOT EXISTS (
    SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid AND p.polcmd IN ('*', 'r')
    AND pg_get_expr(p.polqual, p.polrelid) = 'true'
    AND EXISTS (SELECT FROM unnest(p.polroles) AS role WHERE role = 0 OR pg_has_role(role, 'USAGE')))
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY 1"""

_COPY = re.compile(rb"COPY (.+?)(?: \(.*\))? FROM stdin;")
_POLICY = re.compile(r"^\d+; \d+ \d+ POLICY \S+ (\S+) ")
_GRANT = re.compile(r"^\d+; \d+ \d+ ACL \S+ (SCHEMA|TABLE|COLUMN|SEQUENCE|FUNCTION) ([^\s.(]+)")
_HAS_ROLE = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'keptwork_app')"

NO_ROLE = "The role keptwork_app does not exist. If the HTTP API uses it, create it and run: keptwork migrate --guards"


async def back_up(url: DatabaseUrl, file: Path) -> Backup:
    """Dump the database as of one moment into a new file, and compare the row counts of both."""
    await asyncio.to_thread(_refuse_taken, file)
    connection = await connections_server.connect(url)
    try:
        with connections_server.explained(url):
            if not await migrate.applied(connection):
                raise NotBackedUp(url=url.shown, detail="it holds no Keptwork database")
            await row_security.refuse_unseen(connection, url)
            rows = await _dumped(connection, url, file)
    finally:
        await connection.close()
    return Backup(rows)


async def restore(url: DatabaseUrl, file: Path) -> Restored:
    """Restore a dump into a database without Keptwork's tables. The login that restores it owns everything."""
    connection = await connections_server.connect(url)
    try:
        with connections_server.explained(url):
            if await migrate.applied(connection):
                raise BadBackup(file=file, detail=f"{url.shown} is in use; restore into an empty one: createdb NAME")
            restorer = program("pg_restore", connection.get_server_version().major)
            rows = await asyncio.to_thread(_checked, restorer, file)
            await asyncio.to_thread(_restored, restorer, url, file)
            await row_security.restore_access(connection)
            if wrong := differences(rows, await _counts(connection)):
                raise RestoredOtherwise(url=url.shown, file=file, detail=wrong)
            todo = "" if await connection.fetchval(_HAS_ROLE) else NO_ROLE
    finally:
        await connection.close()
    return Restored(rows, todo=todo)


def _refuse_taken(file: Path) -> None:
    if os.path.lexists(file):
        raise CannotWriteFile(path=file, detail="it exists")


async def _dumped(connection: asyncpg.Connection, url: DatabaseUrl, file: Path) -> dict[str, int]:
    major = connection.get_server_version().major
    dumper, reader = program("pg_dump", major), program("pg_restore", major)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL enable_seqscan = on")
        snapshot = str(await connection.fetchval("SELECT pg_export_snapshot()"))
        rows = await _counts(connection)
        await asyncio.to_thread(_dump, dumper, reader, url, file, snapshot, rows)
    return rows


def _dump(dumper: Program, reader: Program, url: DatabaseUrl, file: Path, snapshot: str, rows: dict[str, int]) -> None:
    """Dump under a temporary name. The file gets its own name once it is complete and compared."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.touch(mode=0o600, exist_ok=True)
        taken = ("--format=custom", "--enable-row-security", f"--snapshot={snapshot}", f"--file={partial}")
        dumper.run(*taken, url=url)
        if wrong := differences(rows, _rows_in(reader, partial)):
            raise NotBackedUp(url=url.shown, detail=f"the dump is not complete ({wrong})")
        descriptor = os.open(partial, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(partial, file)
    except OSError as error:
        raise CannotWriteFile(path=file, detail=error.strerror) from error
    finally:
        with suppress(OSError):
            partial.unlink()


async def _counts(connection: asyncpg.Connection) -> dict[str, int]:
    """Count the rows of each table, including tables of the user. Reject a login that cannot see all rows of a
    table."""
    tables = await connection.fetch(_TABLES)
    if hidden := [name for name, is_hidden in tables if is_hidden]:
        raise NotPermitted(
            url=await connection.fetchval("SELECT current_database()"),
            detail=f"it sees no rows, or not all, of {', '.join(hidden[:3])}{' and others' * (len(hidden) > 3)}",
        )
    return {name: int(await connection.fetchval(f"SELECT count(*) FROM {name}")) for name, _ in tables}  # noqa: S608


def _checked(restorer: Program, file: Path) -> dict[str, int]:
    """Count the rows in a dump. Reject a file that is not a dump, or that was made by a login that saw no rows."""
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(MAGIC))
    except OSError as error:
        raise BadBackup(file=file, detail=(error.strerror or str(error)).lower()) from error
    if magic != MAGIC:
        raise BadBackup(file=file, detail="it is no dump by keptwork backup or pg_dump -Fc")
    rows = _rows_in(restorer, file)
    found = {name.rpartition(".")[2]: count for name, count in rows.items()}
    if not found.get(HISTORY):
        raise BadBackup(file=file, detail="it holds no Keptwork database")
    if not found.get(TENANTS):
        raise BadBackup(file=file, detail="it is empty: the login that took it saw no rows")
    return rows


def _rows_in(reader: Program, file: Path) -> dict[str, int]:
    with reader.printing("--data-only", "--file=-", str(file)) as printed:
        return _counted(printed)


def _counted(printed: IO[bytes]) -> dict[str, int]:
    """Count the lines between each COPY and its end. Each row is one line."""
    rows: dict[str, int] = {}
    for line in printed:
        if copied := _COPY.match(line):
            rows[copied[1].decode()] = _lines_of_table(printed)
    return rows


def _lines_of_table(printed: Iterable[bytes]) -> int:
    count = 0
    for line in printed:
        if line == b"\\.\n":
            break
        count += 1
    return count


def _restored(restorer: Program, url: DatabaseUrl, file: Path) -> None:
    """Restore a dump in one transaction, without Keptwork's policies and grants. They name roles of the old cluster."""
    entries = restorer.run("--list", str(file)).splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".list") as kept:
        kept.write("\n".join(entry for entry in entries if not _names_roles(entry)))
        kept.flush()
        how = ("--no-owner", "--single-transaction", "--exit-on-error", f"--use-list={kept.name}", str(file))
        restorer.run(*how, url=url)


def _names_roles(entry: str) -> bool:
    """Return whether an entry of a dump is a policy or grant of Keptwork's, or a grant on a schema.

    >>> [_names_roles(f"3241; 0 0 ACL public {what} ann") for what in ("TABLE jobs", "COLUMN jobs.id", "TABLE orders")]
    [True, True, False]
    >>> [_names_roles(entry) for entry in ("1; 0 0 ACL - SCHEMA public ann", "7; 3256 9 POLICY public jobs engine ann")]
    [True, True]
    >>> _names_roles("3240; 0 0 ACL public FUNCTION keptwork_enqueue(kind text) ann")
    True
    """
    if found := _POLICY.match(entry):
        return found[1] in row_security.TABLES
    if found := _GRANT.match(entry):
        return found[1] == "SCHEMA" or found[2] in row_security.TABLES or found[2].startswith("keptwork_")
    return False

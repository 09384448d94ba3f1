"""Migrates a SQLite file to the schema of this program."""

from __future__ import annotations

import time
from collections.abc import Callable

import apsw

from keptwork.store.dialect import SQLITE
from keptwork.store.migrations import HISTORY_TABLE, Migration, Tell, log, migrations, stops_told

Execute = Callable[[str], object]


def applied(db: apsw.Connection) -> int:
    """Return the number of the newest migration in the file, or 0 for a new file."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'keptwork_migrations'").fetchone():
        return 0
    (newest,) = db.execute("SELECT coalesce(max(number), 0) FROM keptwork_migrations").fetchall()[0]
    return int(str(newest))


def pending(db: apsw.Connection) -> list[Migration]:
    """Return the migrations that the file still needs."""
    done = applied(db)
    return [migration for migration in migrations(SQLITE) if migration.number > done]


def migrate_file(db: apsw.Connection, execute: Execute | None = None, tell: Tell = log.warning) -> list[Migration]:
    """Apply the pending migrations, each in one transaction with its row in the history.

    If the process dies at any statement, the file is as it was before the interrupted migration, and the next call
    continues there. Two concurrent processes take turns, and the second finds nothing to do.
    """
    execute = execute or db.execute
    done: list[Migration] = []
    while True:
        execute("BEGIN IMMEDIATE")
        try:
            if not (waiting := pending(db)):
                execute("ROLLBACK")
                return done
            with stops_told(waiting[0], f"{len(done) + 1} of {len(done) + len(waiting)}", tell):
                _apply(db, waiting[0], execute)
                execute("COMMIT")
            done.append(waiting[0])
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _apply(db: apsw.Connection, migration: Migration, execute: Execute) -> None:
    execute(HISTORY_TABLE)
    if migration.replaces_guards:
        for (name,) in db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB 'keptwork_*'"
        ).fetchall():
            execute(f'DROP TRIGGER "{name}"')
    for statement in migration.statements:
        execute(statement)
    values = (migration.number, migration.name, time.time_ns() // 1000)
    db.execute("INSERT INTO keptwork_migrations (number, name, applied_at) VALUES (?, ?, ?)", values)

"""Faults of a SQLite file itself: damaged pages, and a changed schema."""

from __future__ import annotations

from functools import cache

import apsw

from keptwork.store.sqlite.file_migrate import migrate_file

MOST_FAULTS = 20

_SCHEMA = "SELECT name, type, sql FROM sqlite_schema WHERE sql IS NOT NULL"


def sqlite_faults(db: apsw.Connection) -> list[str]:
    """Return the faults of pages and indexes, as SQLite finds them. Add the differences of tables, indexes, and guards
    from the declared ones."""
    checked = db.execute(f"PRAGMA integrity_check({MOST_FAULTS})").fetchall()
    damage = [_one_line(row[0]) for row in checked if row[0] != "ok"]
    found = {name: sql for name, _, sql in db.execute(_SCHEMA)}
    return damage + [
        f"the {'guard' if kind == 'trigger' else kind} {name} is {'changed' if name in found else 'missing'}"
        for name, kind, sql in _declared()
        if found.get(name) != sql
    ]


@cache
def _declared() -> list[tuple[object, ...]]:
    """Return the schema as the migrations create it."""
    db = apsw.Connection(":memory:")
    migrate_file(db)
    schema: list[tuple[object, ...]] = db.execute(_SCHEMA).fetchall()
    db.close()
    return schema


def restore_guards(db: apsw.Connection) -> list[str]:
    """Restore every missing or changed guard as declared, in one transaction, and return their names."""
    with db:
        found = {name: sql for name, _, sql in db.execute(_SCHEMA)}
        guards = [(str(name), str(sql)) for name, kind, sql in _declared() if kind == "trigger"]
        changed = [(name, sql) for name, sql in guards if found.get(name) != sql]
        for name, sql in changed:
            db.execute(f'DROP TRIGGER IF EXISTS "{name}"')  # only names of declared guards
            db.execute(sql)
    return [name for name, _ in changed]


def _one_line(text: object) -> str:
    return " ".join(str(text).removeprefix("*** in database main ***").split())

"""Numbered migrations: read from `schema/`, rendered for a database, and applied in order under a lock.

`NNNN_name.sql` serves both databases. `NNNN_name.DIALECT.before.sql` and `NNNN_name.DIALECT.sql` add what only one of
them needs. A line `--: guards FINGERPRINT` installs the triggers generated from the declarations. Only the last such
line counts: when a declaration changes, a new migration with the new fingerprint installs the new triggers.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from keptwork.store.dialect import POSTGRES, SQLITE, Dialect, declared, fill
from keptwork.store.postgres.triggers import postgres_guards
from keptwork.store.sqlite.triggers import sqlite_guards

LOCK_KEY = 0x4B455054574F524B  # "KEPTWORK", a PostgreSQL advisory lock number that no other program uses

Tell = Callable[[str], None]
log = logging.getLogger("keptwork")

HISTORY_TABLE = """CREATE TABLE IF NOT EXISTS keptwork_migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at bigint NOT NULL
)"""

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_GUARDS = re.compile(r"^--: guards (\w+)$", re.MULTILINE)
_DEFINITION = re.compile(r"^--: define (\w+)\n(.*?)^--: end\n", re.MULTILINE | re.DOTALL)


class Migration(NamedTuple):
    """One step of the schema. Its statements and its row in the history are one transaction."""

    number: int
    name: str
    statements: tuple[str, ...]
    replaces_guards: bool


@contextmanager
def stops_told(migration: Migration, place: str, tell: Tell) -> Iterator[None]:
    """Report the migration in which an error or an interruption stops the upgrade."""
    try:
        yield
    except BaseException:
        tell(
            f"stopped in migration {migration.number:04} {migration.name} ({place}). "
            "Each migration is applied whole or not at all. To continue, run: keptwork migrate"
        )
        raise


def guards(dialect: Dialect) -> list[str]:
    """Return the triggers of a database, generated from the declarations."""
    return sqlite_guards() if dialect is SQLITE else postgres_guards()


def fingerprint() -> str:
    """Return a hash of all triggers. If it changes with a declaration, a new guards migration is needed."""
    text = "\n".join([*guards(SQLITE), *guards(POSTGRES)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """Return all migrations for a database, oldest first."""
    folder = {entry.name: entry.read_text("utf-8") for entry in files("keptwork.store").joinpath("schema").iterdir()}
    named = sorted((int(m[1]), m[2]) for name in folder if (m := _FILE.fullmatch(name)))
    last_guards = max(n for n, name in named if _GUARDS.search(folder[f"{n:04}_{name}.sql"]))
    return tuple(_migration(folder, number, name, dialect, last_guards) for number, name in named)


def newest() -> int:
    """Return the number of the schema that this program was written for."""
    return migrations(SQLITE)[-1].number


def declared_fingerprint() -> str:
    """Return the fingerprint that the newest guards migration was written for."""
    texts = [
        entry.read_text("utf-8")
        for entry in sorted(files("keptwork.store").joinpath("schema").iterdir(), key=lambda e: e.name)
    ]
    return [match[1] for text in texts for match in _GUARDS.finditer(text)][-1]


def _migration(folder: dict[str, str], number: int, name: str, dialect: Dialect, last_guards: int) -> Migration:
    stem = f"{number:04}_{name}"
    parts = [f"{stem}.{dialect.name}.before.sql", f"{stem}.sql", f"{stem}.{dialect.name}.sql"]
    statements = [s for part in parts if part in folder for s in _statements(folder[part], dialect)]
    if number == last_guards:
        statements += guards(dialect)
    return Migration(number, name, tuple(statements), number == last_guards)


def _statements(text: str, dialect: Dialect) -> list[str]:
    definitions = {match[1]: match[2].strip() for match in _DEFINITION.finditer(text)}
    text = _DEFINITION.sub("", text)

    def word(name: str) -> str | None:
        if name in definitions:
            return fill(definitions[name], word)
        return dialect.words[name] if name in dialect.words else declared(name)

    return [fill(statement, word) for statement in split(text)]


def split(sql: str) -> list[str]:
    """Return the statements of a file. Each ends with a semicolon at the end of a line, outside a $$ body."""
    statements: list[str] = []
    lines: list[str] = []
    quoted = False
    for line in sql.splitlines():
        if not lines and (not line.strip() or line.startswith("--")):
            continue
        lines.append(line)
        quoted ^= line.count("$$") % 2 == 1
        if line.rstrip().endswith(";") and not quoted:
            statements.append("\n".join(lines).rstrip().removesuffix(";"))
            lines = []
    return statements

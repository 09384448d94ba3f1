"""Programs that people type SQL into: the system's `sqlite3` and `psql`, run as they come."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from tests.support.postgres_binaries import environment

# An old client for a machine that has nothing but Python: the SQLite its standard library was built with.
STDLIB = """import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
try:
    for row in db.execute(sys.argv[2]):
        print("|".join("" if value is None else str(value) for value in row))
except sqlite3.Error as error:
    sys.exit(f"Error: {error}")
"""


class Said(NamedTuple):
    """How a program ended, what it printed and what it complained of."""

    code: int
    out: str
    err: str


Client = Callable[[str], Said]


def run(argv: list[str]) -> Said:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment())
    return Said(done.returncode, done.stdout.strip(), done.stderr.strip())


def sqlite_program(path: str) -> Client:
    """The system's sqlite3; where there is none, Python's own SQLite in a process of its own, saying so."""
    program = shutil.which("sqlite3")
    if program is None:
        print("no sqlite3 program on this machine: Python's own SQLite stands in for it")
        return sqlite_stdlib(path)
    return lambda sql: run([program, path, sql])


def sqlite_stdlib(path: str) -> Client:
    """Never in this process: closing a file through a second SQLite library drops the first one's locks."""
    return lambda sql: run([sys.executable, "-I", "-c", STDLIB, path, sql])


def psql(program: str, url: str) -> Client:
    """One psql call; several statements in one string run in one session and one transaction."""
    options = ["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", url]
    return lambda sql: run([program, *options, "-c", sql])

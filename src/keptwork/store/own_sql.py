"""Statements of the caller's own, run in a transaction of the store: which of them may be."""

from __future__ import annotations

import re

from keptwork.errors import BadInput

# What would end the transaction under the store's feet, or change the connection for whoever gets it next.
ENDS_IT = {"abort", "begin", "commit", "end", "prepare", "release", "rollback", "savepoint", "start", "vacuum"}
OUTLIVES_IT = {"attach", "deallocate", "detach", "discard", "listen", "load", "pragma", "reset", "set", "unlisten"}
# Comments nest in PostgreSQL and not in SQLite, so one within another is no comment here.
_FIRST_WORD = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*(?:(?!/\*|\*/).)*\*/)*(\w+|\()", re.DOTALL)


def insist_harmless(sql: str) -> None:
    """Refuses a statement that would end the transaction it is run in, or outlive it."""
    found = _FIRST_WORD.match(sql)
    if found is None:
        raise BadInput(what=f"{sql[:100]!r} is no statement; it must begin with an SQL word")
    if found[1].lower() in ENDS_IT | OUTLIVES_IT:
        raise BadInput(
            what=f"{found[1].upper()} cannot run inside a transaction of Keptwork: it begins and ends with its block, "
            f"and leaves the connection as it was"
        )

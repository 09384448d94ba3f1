"""Checks that a caller's own statement can run in a transaction of the store."""

from __future__ import annotations

import re

from keptwork.errors import BadInput

# Words that would end the store's transaction, or change the connection for its next user.
ENDS_IT = {"abort", "begin", "commit", "end", "prepare", "release", "rollback", "savepoint", "start", "vacuum"}
OUTLIVES_IT = {"attach", "deallocate", "detach", "discard", "listen", "load", "pragma", "reset", "set", "unlisten"}
# Comments nest in PostgreSQL but not in SQLite, so this does not match a comment that contains another.
_FIRST_WORD = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*(?:(?!/\*|\*/).)*\*/)*(\w+|\()", re.DOTALL)


def insist_harmless(sql: str) -> None:
    """Reject a statement that would end its transaction or outlive it."""
    found = _FIRST_WORD.match(sql)
    if found is None:
        raise BadInput(what=f"{sql[:100]!r} is no statement; it must begin with an SQL word")
    if found[1].lower() in ENDS_IT | OUTLIVES_IT:
        raise BadInput(
            what=f"{found[1].upper()} cannot run inside a transaction of Keptwork: it begins and ends with its block, "
            f"and leaves the connection as it was"
        )

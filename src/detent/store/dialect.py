"""The words in which the two databases differ, filled into the SQL files by the loader."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from detent.lifecycle import LIFECYCLES
from detent.store.guards import literal


@dataclass(frozen=True, eq=False)
class Dialect:
    """A database's name, and its types by meaning."""

    name: str
    words: dict[str, str]


SQLITE = Dialect(
    "sqlite",
    {
        "key": "INTEGER",
        "time": "INTEGER",
        "int": "INTEGER",
        "json": "TEXT",
        "bytes": "BLOB",
        "strict": "STRICT",
        "for_share": "",
        "for_update_skip_locked": "",
        "pk": "INTEGER PRIMARY KEY",
        "pk_int": "INTEGER PRIMARY KEY",
        "event_position": "id INTEGER PRIMARY KEY AUTOINCREMENT",
        "event_key": "",
        "tx": "0",
        "commit_order": "id",
        "after_cursor": "id > :id",
        "ended_before": "(:before ->> state)",
    },
)

POSTGRES = Dialect(
    "postgres",
    {
        "key": "bigint",
        "time": "bigint",
        "int": "int",
        "json": "json",
        "bytes": "bytea",
        "strict": "",
        "for_share": "FOR SHARE",
        "for_update_skip_locked": "FOR UPDATE SKIP LOCKED",
        "pk": "bigint PRIMARY KEY",
        "pk_int": "int PRIMARY KEY",
        "event_position": (
            "tx bigint NOT NULL DEFAULT detent_tx(), id bigint NOT NULL DEFAULT nextval('detent_event_ids')"
        ),
        "event_key": ",\n    PRIMARY KEY (tx, id)",
        "tx": "tx",
        "commit_order": "tx, id",
        "after_cursor": "(tx, id) > (:tx, :id) AND tx < detent_tx_horizon()",
        "ended_before": "(:before::json ->> state)::bigint",
    },
)

_WORD = re.compile(r"\{([a-z][A-Za-z_. -]*)\}")


def fill(sql: str, word: Callable[[str], str | None]) -> str:
    """Put a value in the place of every word in braces; a word nobody knows is an error at load time."""

    def value(match: re.Match[str]) -> str:
        found = word(match[1])
        if found is None:
            raise KeyError(f"unknown word {match[0]} in SQL")
        return found

    return _WORD.sub(value, sql)


def declared(word: str) -> str | None:
    """`job.queued`, `job.claim` and `event job.claim` as SQL strings: a state, a trigger, a trigger's event.

    No state is typed into an SQL file, so none can be misspelt or forgotten.
    """
    wants_event = word.startswith("event ")
    name, _, part = word.removeprefix("event ").partition(".")
    lifecycle = LIFECYCLES.get(name)
    if lifecycle is None:
        return None
    events = {move.trigger: move.event for move in lifecycle.moves}
    if wants_event:
        return literal(events[part]) if part in events else None
    return literal(part) if part in events or part in {state.name for state in lifecycle.states} else None

"""Whether a database is whole: events gapless, each row what its events say, neither without the other."""

from __future__ import annotations

from collections.abc import Iterator

from tests.store.entities import TABLES
from tests.store.guard_check import not_rebuilt
from tests.store.hands import Hand, Row


def damages(hand: Hand) -> Iterator[str]:
    """What is wrong, in words; a whole database has nothing to tell."""
    logs = _logs(hand)
    moves = 0
    for name, (table, needed) in TABLES.items():
        mine = f"WHERE lifecycle = {needed['lifecycle']}" if "lifecycle" in needed else ""
        for row in hand.rows(f"SELECT * FROM {table} {mine}"):
            moves += row["seq"]
            problem = not_rebuilt(name, row, logs.pop((name, row["id"]), []))
            if problem:
                yield f"{name} {row['id']}: {problem}"
    yield from (f"{name} {id} has {len(log)} events and no row" for (name, id), log in logs.items())
    (counted,) = hand.rows("SELECT count(*) AS events FROM events")
    if counted["events"] != moves:
        yield f"{counted['events']} events for {moves} moves"


def _logs(hand: Hand) -> dict[tuple[str, int], list[Row]]:
    logs: dict[tuple[str, int], list[Row]] = {}
    for event in hand.rows("SELECT * FROM events ORDER BY entity_id, seq"):
        logs.setdefault((event["entity"], event["entity_id"]), []).append(event)
    return logs

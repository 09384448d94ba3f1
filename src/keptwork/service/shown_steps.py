"""Steps as they are shown: when each began in its last round, and how often a step that runs for a list was tried.

A row has when its step began for the first time. A step of a workstream that failed and is reset begins once more, in
another round; the log has when. The row of a step that runs once for each of a list has no tries of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keptwork.flow.phase import Phase, phases
from keptwork.lifecycle import WORKSTREAM, WORKSTREAM_STEP, Verb
from keptwork.service.entities import public_id
from keptwork.service.flow_scene import Row
from keptwork.store.protocol import Reader
from keptwork.store.records import Event, EventFilter

PAGE = 1_000
BEGINS = next(move.event for move in WORKSTREAM_STEP.moves if move.verb is Verb.START)
"""The event with which a round of a step begins; a retry within the round is another."""


async def shown(store: Reader, flow: Row, rows: Iterable[Row]) -> list[Row]:
    """Steps of a flow. The elements among them are those whose tries count."""
    tries: dict[int, int] = {}
    found = list(rows)
    for row in found:
        if row["parent_id"] is not None:
            tries[row["parent_id"]] = max(tries.get(row["parent_id"], 0), row["attempts"])
    begun = await _begun(store, flow) if flow.get("retry_count") else {}
    return [in_last_round({**row, "attempts": row["attempts"] or tries.get(row["id"], 0)}, begun) for row in found]


async def one_shown(store: Reader, flow: Row, row: Row) -> Row:
    """The same of one step, looked at by itself."""
    elements = [] if row["job_id"] else await store.steps(row["flow_id"], parent=row["id"])
    return (await shown(store, flow, [row, *elements]))[0]


def in_last_round(row: Row, begun: Mapping[int, int]) -> Row:
    """A step with when it began in its last round, if that is known; one that waits for it has not."""
    if row["lifecycle"] != WORKSTREAM_STEP.name or row["started_at"] is None:
        return row
    waits = phases(WORKSTREAM_STEP)[row["state"]] is Phase.WAITING
    return {**row, "started_at": None if waits else begun.get(row["id"], row["started_at"])}


def beginnings(events: Iterable[Event]) -> dict[int, int]:
    """When steps began, by their keys, from the events of their moves; the last time counts."""
    return {event.entity_id: event.ts for event in events if event.type == BEGINS}


async def _begun(store: Reader, flow: Row) -> dict[int, int]:
    """When the steps of a workstream, and of those around it, began; for one that was never tried again rows tell."""
    tree = flow["correlation_id"] or public_id(WORKSTREAM.name, flow["id"])
    wanted = EventFilter(flow["tenant_id"], entity=WORKSTREAM_STEP.name, type=BEGINS, correlation_id=tree)
    found: dict[int, int] = {}
    page = await store.events(wanted, limit=PAGE)
    while page:
        found |= beginnings(page)
        page = await store.events(wanted, after=page[-1].cursor, limit=PAGE) if len(page) == PAGE else []
    return found

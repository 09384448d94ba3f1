"""Steps as they are shown: with the start of their last round and the attempts of items.

A row has the time when its step first started. A failed workstream step that is reset starts again, in another round;
the log has that time. The row of a `for_each` step has no attempts of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import WORKSTREAM, WORKSTREAM_STEP, Verb
from keptwork.flows.plan_phase import Phase, phases
from keptwork.flows.transaction import Row
from keptwork.store.contract.records import Event, EventFilter
from keptwork.store.contract.store import Reader

PAGE = 1_000
BEGINS = next(move.event for move in WORKSTREAM_STEP.moves if move.verb is Verb.START)
"""The event that starts a round of a step. A retry within the round has another event."""


async def shown(store: Reader, flow: Row, rows: Iterable[Row]) -> list[Row]:
    """Return the steps of a flow as they are shown. A `for_each` step has the most attempts of any item."""
    tries: dict[int, int] = {}
    found = list(rows)
    for row in found:
        if row["parent_id"] is not None:
            tries[row["parent_id"]] = max(tries.get(row["parent_id"], 0), row["attempts"])
    begun = await _begun(store, flow) if flow.get("retry_count") else {}
    return [in_last_round({**row, "attempts": row["attempts"] or tries.get(row["id"], 0)}, begun) for row in found]


async def one_shown(store: Reader, flow: Row, row: Row) -> Row:
    """Return a single step as it is shown."""
    elements = [] if row["job_id"] else await store.steps(row["flow_id"], parent=row["id"])
    return (await shown(store, flow, [row, *elements]))[0]


def in_last_round(row: Row, begun: Mapping[int, int]) -> Row:
    """Return a step with the start of its last round, if known.

    A step that waits to start has none.
    """
    if row["lifecycle"] != WORKSTREAM_STEP.name or row["started_at"] is None:
        return row
    waits = phases(WORKSTREAM_STEP)[row["state"]] is Phase.WAITING
    return {**row, "started_at": None if waits else begun.get(row["id"], row["started_at"])}


def beginnings(events: Iterable[Event]) -> dict[int, int]:
    """Return when steps last started, by key, from the events of their moves."""
    return {event.entity_id: event.ts for event in events if event.type == BEGINS}


async def _begun(store: Reader, flow: Row) -> dict[int, int]:
    """Return when the steps of a workstream and its parent flows last started.

    Steps that never started again do not need it, because their rows have the time.
    """
    tree = flow["correlation_id"] or public_id(WORKSTREAM.name, flow["id"])
    wanted = EventFilter(flow["tenant_id"], entity=WORKSTREAM_STEP.name, type=BEGINS, correlation_id=tree)
    found: dict[int, int] = {}
    page = await store.events(wanted, limit=PAGE)
    while page:
        found |= beginnings(page)
        page = await store.events(wanted, after=page[-1].cursor, limit=PAGE) if len(page) == PAGE else []
    return found

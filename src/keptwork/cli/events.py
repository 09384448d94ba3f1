"""`keptwork events`: list events page by page, or follow them."""

from __future__ import annotations

import asyncio
import json
import select
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.audit import events as service
from keptwork.cli import screen
from keptwork.cli.database import Db, opened
from keptwork.core.durations import moment_us
from keptwork.core.ids_entities import actor_name, lifecycle_named, public_id, resolve, unknown
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.errors import BadInput
from keptwork.flows.queries import find_step
from keptwork.store.contract.records import Event, EventFilter

if TYPE_CHECKING:
    from rich.table import Table

    from keptwork.store.contract.store import Store

app = typer.Typer()

Entity = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only this lifecycle.", autocompletion=lambda: list(LIFECYCLES)),
]
Id = Annotated[str | None, typer.Option(metavar="ID", help="Only this entity, by public ID. A step also by FLOW/NAME.")]
Type = Annotated[str | None, typer.Option(metavar="TYPE", help="Only this event type, such as job_failed.")]
Correlation = Annotated[str | None, typer.Option(metavar="ID", help="Only events with this correlation ID.")]

LOOK_FOR_READER_SECONDS = 0.2
WIDE_ENOUGH = 175
NOBODY = "–"


@app.command("list")
def list_(
    entity: Entity = None,
    id: Id = None,
    type: Type = None,
    correlation: Correlation = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Start of the period; 10m means ten minutes ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="End of the period (exclusive).")] = None,
    text: screen.Search = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Cursor of the previous page.")] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="List the oldest first.")] = False,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List events, newest first. WHEN is a time such as 2026-11-15T17:10:20Z, or a duration such as 10m."""

    async def read() -> service.Page:
        async with opened(db) as store:
            wanted = await _filter(store, entity, id, type, correlation)
            chosen = await _between(store, wanted, since, until)
            order = not oldest_first
            page = await service.page(store, chosen, after=after, limit=limit, newest_first=order, text=text)
            if id and not page.events:
                await _insist_on(store, id, wanted)
            return page

    page = asyncio.run(read())
    screen.emit(
        {"events": [_with_cursor(event) for event in page.events], "next": page.next},
        lambda: _table(page.events) if page.events else "No events.",
        as_json,
    )
    if page.next and not as_json:
        screen.complain(f"There are more; go on with: --after {page.next}")


@app.command()
def follow(
    entity: Entity = None,
    id: Id = None,
    type: Type = None,
    correlation: Correlation = None,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Start after this cursor instead of now.")] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Start with the first event.")] = False,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Print every event as it is committed, until interrupted. With --json, each event is one line of JSON."""
    if after and from_start:
        raise BadInput(what="--after and --from-start exclude each other")

    async def read() -> None:
        async with opened(db) as store:
            wanted = await _filter(store, entity, id, type, correlation)
            async for event in service.follow(store, wanted, after=after, from_start=from_start):
                print(json.dumps(_with_cursor(event)) if as_json else _line(event), flush=True)

    asyncio.run(_while_read(read()))


async def _filter(
    store: Store, entity: str | None, id: str | None, type: str | None, correlation: str | None
) -> EventFilter:
    name = lifecycle_named(entity).name if entity else None
    if id is None:
        return EventFilter(entity=name, type=type, correlation_id=correlation)
    step = await find_step(store, None, id) if "/" in id else None
    lifecycles, key = resolve(id if step is None else public_id(step["lifecycle"], step["id"]))
    if name and name not in (lifecycle.name for lifecycle in lifecycles):
        raise BadInput(what=f"{id} is no {name}; leave out --entity or --id")
    only = lifecycles[0].name if len(lifecycles) == 1 else name
    return EventFilter(entity=only, entity_id=key, type=type, correlation_id=correlation)


async def _between(store: Store, wanted: EventFilter, since: str | None, until: str | None) -> EventFilter:
    now = await store.now()
    return EventFilter(
        entity=wanted.entity,
        entity_id=wanted.entity_id,
        type=wanted.type,
        correlation_id=wanted.correlation_id,
        since=moment_us(since, now) if since else None,
        until=moment_us(until, now) if until else None,
    )


async def _insist_on(store: Store, id: str, wanted: EventFilter) -> None:
    """Raise an error if the entity does not exist. Without one, no event matched the filter."""
    if not await store.events(EventFilter(entity=wanted.entity, entity_id=wanted.entity_id), limit=1):
        raise unknown(id)


def _with_cursor(event: Event) -> dict[str, Any]:
    return {**service.as_json(event), "cursor": event.cursor}


def _table(events: list[Event]) -> Table:
    """Return events as a table.

    IDs are never cut, so that they can be copied. On a narrow terminal, the other values are below them.
    """
    if screen.stdout().width < WIDE_ENOUGH:
        return _narrow_table(events)
    table = screen.table("when", "entity", "event", "state", "by", "reason")
    for column in table.columns[:5]:
        column.no_wrap = True
    for event in events:
        table.add_row(*_cells(event))
    return table


def _narrow_table(events: list[Event]) -> Table:
    days = {screen.moment(event.ts)[:10] for event in events}
    table = screen.table(days.pop() if (one_day := len(days) == 1) else "when", "event", "entity")
    for event in events:
        when, entity, type, _, by, reason = _cells(event)
        below = [f"by {by}"] * (by != NOBODY) + [reason] * bool(reason)
        table.add_row(when[11:] if one_day else when, type, "\n".join([entity, *below]))
    return table


def _line(event: Event) -> str:
    when, entity, type, state, by, reason = _cells(event)
    return f"{when}  {entity:<41}  {type:<20}  {state:<24}  {by}  {reason}".rstrip()


def _cells(event: Event) -> tuple[str, ...]:
    state = f"{event.from_state} → {event.to_state}" if event.from_state else event.to_state
    entity = public_id(event.entity, event.entity_id)
    return screen.moment(event.ts), entity, event.type, state, actor_name(event.actor) or NOBODY, event.reason or ""


async def _while_read(work: Awaitable[None]) -> None:
    """Run the work until it ends or the reader of stdout leaves.

    A log without new events writes nothing, so a failed write alone would not reveal that the reader left.
    """
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(_reader_leaves())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _reader_leaves() -> None:
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    while not output.poll(0):  # noqa: ASYNC110 - poll(2) must be repeated: no event announces that the reader left
        await asyncio.sleep(LOOK_FOR_READER_SECONDS)
    raise BrokenPipeError

"""`keptwork events`: list events page by page, or follow them."""

from __future__ import annotations

import asyncio
import json
import select
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.audit import events, seals
from keptwork.audit import verify as service
from keptwork.cli import screen
from keptwork.cli.database import Db, opened
from keptwork.cli.screen import written_whole
from keptwork.core.durations import moment_us
from keptwork.core.ids import actor_name, lifecycle_named, public_id, resolve, unknown
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.errors import BadInput
from keptwork.flows.queries import find_step
from keptwork.store.contract.events_seals import Seal
from keptwork.store.contract.records import Event, EventFilter

if TYPE_CHECKING:
    from rich.console import RenderableType
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

    async def read() -> events.Page:
        async with opened(db) as store:
            wanted = await _filter(store, entity, id, type, correlation)
            chosen = await _between(store, wanted, since, until)
            order = not oldest_first
            page = await events.page(store, chosen, after=after, limit=limit, newest_first=order, text=text)
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
            async for event in events.follow(store, wanted, after=after, from_start=from_start):
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
    return {**events.as_json(event), "cursor": event.cursor}


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


# `keptwork audit`: check the event log against the rows, seal it, and export it.


audit_app = typer.Typer()

PROBLEMS = 1


@audit_app.command()
def verify(
    against: Annotated[
        str | None, typer.Option(metavar="HASH", help="Hash of a seal that you stored elsewhere.")
    ] = None,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Replay all events, compare them with the rows, and check every seal.

    Exit code 1 if anything does not match.
    """

    async def check() -> service.Verdict:
        async with opened(db) as store:
            with screen.progress("Verifying", "events") as told:
                return await service.verify(store, told, against=against)

    began = time.perf_counter()
    verdict = asyncio.run(check())
    seconds = time.perf_counter() - began
    screen.emit(as_dict(verdict), lambda: drawn(verdict, seconds), as_json)
    if not verdict.clean:
        raise typer.Exit(PROBLEMS)


@audit_app.command()
def seal(db: Db = None, as_json: screen.Json = False) -> None:
    """Seal the unsealed events and print the newest seal, a line to store elsewhere."""

    async def make() -> tuple[int, Seal | None]:
        async with opened(db) as store, store.acknowledging():
            return await seals.seal(store), await store.last_seal()

    events, last = asyncio.run(make())
    result = {"events": events, "seal": None if last is None else last._asdict()}
    screen.emit(result, lambda: _sealed(events, last), as_json)


@audit_app.command()
def export(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Output file. Default: stdout.")] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Cursor that an earlier export printed. Writes only later events."),
    ] = None,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Write every event as a line of JSON, in commit order. The file appears when it is complete."""

    async def write() -> service.Exported:
        async with opened(db) as store:
            with screen.progress("Exporting", "events") as told, written_whole(file) as output:
                return await service.export(store, output.write, told, after=after)

    done = asyncio.run(write())
    result = {"events": done.events, "left": done.left, "cursor": done.cursor}
    if file and str(file) != "-":
        screen.emit({"file": str(file), **result}, lambda: _exported(file, done), as_json)


def as_dict(verdict: service.Verdict) -> dict[str, Any]:
    """Return a verdict as JSON data."""
    return {
        "clean": verdict.clean,
        "events": verdict.events,
        "entities": verdict.entities,
        "rows": verdict.rows,
        "sealed": {
            "seals": verdict.sealed.seals,
            "events": verdict.sealed.events,
            "hash": verdict.sealed.last and verdict.sealed.last.hash,
        },
        "problem_count": verdict.problem_count,
        "problems": [problem._asdict() for problem in verdict.problems],
    }


def drawn(verdict: service.Verdict, seconds: float) -> RenderableType:
    """Return a verdict as text: its problems, if any, and a summary."""
    from rich.console import Group

    rows = ", ".join(f"{count:,} {name}" for name, count in verdict.rows.items() if count) or "none"
    read = f"{verdict.events:,} events of {verdict.entities:,} entities replayed in {seconds:.1f} s; rows: {rows}."
    covered, number = verdict.sealed.events, verdict.sealed.seals
    sealed = f"{covered:,} of the events are sealed, by {number:,} seal{'' if number == 1 else 's'}."
    if verdict.clean:
        return Group(read, sealed, "Clean: no gap, no broken seal, and the state of every row matches its events.")
    count = "1 problem" if verdict.problem_count == 1 else f"{verdict.problem_count:,} problems"
    more = verdict.problem_count - len(verdict.problems)
    last = f"NOT clean: {count}" + (f", of which the first {len(verdict.problems):,} are shown." if more else ".")
    hint = ["Guards are put back with: keptwork migrate --guards"] if _lacks_guards(verdict) else []
    return Group(_problems(verdict.problems), "", read, sealed, last, *hint)


def _lacks_guards(verdict: service.Verdict) -> bool:
    return any(problem.what.startswith("the guard ") for problem in verdict.problems)


def _problems(problems: list[service.Problem]) -> RenderableType:
    table = screen.table("entity", "where", "problem")
    table.columns[0].no_wrap = True
    for problem in problems:
        table.add_row(problem.entity, problem.where, problem.what)
    return table


def _sealed(events: int, last: Seal | None) -> str:
    if last is None:
        return "There are no events to seal."
    new = f"{events:,} events are sealed now, " if events else "Nothing was left to seal: "
    return (
        f"{new}{last.total:,} in all.\nSeal {last.number}: {last.hash}\n"
        "Kept elsewhere, it tells later whether anything before it was changed:\n"
        f"  keptwork audit verify --against {last.hash}"
    )


def _exported(file: Path, done: service.Exported) -> str:
    line = f"{done.events:,} events are in {file}."
    if done.left:
        line += f" {done.left:,} more were committed beside a transaction that is still open; export again later."
    return line + (f" Later ones: --after {done.cursor}" if done.cursor else "")

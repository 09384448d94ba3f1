"""`keptwork demo`: run example jobs, then show their event log and its audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.audit import events, verify
from keptwork.cli import screen
from keptwork.cli.demo_service import Demonstration, demonstrate
from keptwork.cli.events_audit import as_dict, drawn
from keptwork.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from keptwork.store.contract.records import Event

WIDE_ENOUGH = 112

Where = Annotated[
    str | None, typer.Option("--db", metavar="URL", help="Database URL. Default: a temporary SQLite database.")
]


def demo(db: Where = None, as_json: screen.Json = False) -> None:
    """Run example jobs: success, retry, a dead worker, a cancellation, and a dead letter. Takes 2 s."""
    if db and ":memory:" in db:
        raise BadInput(what="the demo also looks from outside, which a database in memory does not allow; give a file")
    with _database(db) as (url, shown):
        story = _Story(f"Keptwork demo on {shown}", silent=as_json)
        shown_to, verdict, seconds = asyncio.run(_perform(url, story))
    value = {
        "story": story.told,
        "events": [events.as_json(event) for event in shown_to.events],
        "refused": {"by_decide": shown_to.refused_by_decide, "by_database": shown_to.refused_by_database},
        "audit": as_dict(verdict),
    }
    screen.emit(value, lambda: _epilogue(shown_to, verdict, seconds), as_json)
    if not verdict.clean:
        raise typer.Exit(1)


async def _perform(url: str, story: _Story) -> tuple[Demonstration, verify.Verdict, float]:
    from keptwork.store import open_store

    store = await open_store(url)
    try:
        shown = await demonstrate(store, url, story.tell)
        began = time.perf_counter()
        return shown, await verify.verify(store), time.perf_counter() - began
    finally:
        await store.close()


class _Story:
    """Print and record what happens. The title is printed before the first line."""

    def __init__(self, title: str, *, silent: bool) -> None:
        self._title = title
        self._silent = silent
        self._began = time.monotonic()
        self.told: list[dict[str, str]] = []

    def tell(self, job: str, what: str) -> None:
        first = not self.told
        self.told.append({"job": job, "what": what})
        if self._silent:
            return
        if first:
            screen.stdout().print(f"{self._title}\n", style="bold")
        screen.stdout().print(_told(time.monotonic() - self._began, job, what))


def _told(seconds: float, job: str, what: str) -> Table:
    from rich.table import Table

    line = Table.grid(padding=(0, 2))
    line.add_column(width=6, justify="right", style="dim")
    line.add_column(width=14, style="cyan")
    line.add_column()
    line.add_row(f"{seconds:.2f} s", job or "all", what)
    return line


def _epilogue(shown: Demonstration, verdict: verify.Verdict, seconds: float) -> Any:
    from rich.console import Group
    from rich.text import Text

    return Group(
        "",
        Text(f"The event log: one event for each move, {len(shown.events)} in all", style="bold"),
        "",
        _log(shown),
        "",
        Text("What was not declared cannot happen", style="bold"),
        "",
        "The program asks whether the cancelled import-orders may succeed, and is told:",
        f"  {shown.refused_by_decide}",
        "Somebody types into the database:",
        f"  {shown.statement}",
        "and the database itself refuses:",
        f"  {shown.refused_by_database}",
        "",
        Text("The audit replays the log and compares it with the rows", style="bold"),
        "",
        drawn(verdict, seconds),
    )


def _log(shown: Demonstration) -> Table:
    """Return the event log as a table. On a narrow terminal, omit the state and epoch columns."""
    wide = screen.stdout().width >= WIDE_ENOUGH
    names = ("time (UTC)", "entity", "event", "state", "epoch", "by", "reason")
    chosen = [place for place, name in enumerate(names) if wide or name not in ("state", "epoch")]
    table = screen.table(*(names[place] for place in chosen))
    for column in table.columns[:-1]:
        column.no_wrap = True
    for event in shown.events:
        cells = tuple(_cells(shown, event))
        table.add_row(*(cells[place] for place in chosen))
    return table


def _cells(shown: Demonstration, event: Event) -> Iterator[str]:
    yield screen.moment(event.ts)[11:-1]
    yield shown.names.get(event.entity_id, events.as_json(event)["entity_id"])
    yield event.type
    yield f"{event.from_state} → {event.to_state}" if event.from_state else event.to_state
    yield str(event.epoch)
    actor = event.actor or "–"
    yield shown.names.get(int(actor[2:]), actor) if actor.startswith("w:") else actor
    yield event.reason or ""


@contextmanager
def _database(db: str | None) -> Iterator[tuple[str, str]]:
    from keptwork.store.url import redacted

    if db:
        yield db, redacted(db)
        return
    with TemporaryDirectory(prefix="keptwork-demo-") as folder:
        yield f"sqlite:///{Path(folder) / 'demo.db'}", "a temporary SQLite database; --db URL takes another"

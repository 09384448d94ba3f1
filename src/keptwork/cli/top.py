"""`keptwork top`: show the state of a tenant on an updating screen, or once for logs and programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from keptwork.cli.jobs import WIDE_ENOUGH, state_name
from keptwork.cli.run_summary import NARROW
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.diagnostics import overview as service
from keptwork.diagnostics.overview import MOST_COUNTED
from keptwork.errors import StoreError
from keptwork.jobs import limits
from keptwork.workers import commands as workers
from keptwork.workers.commands import is_silent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

    from keptwork.diagnostics.overview import FlowLine, Minute, Overview, Row
    from keptwork.store import QueueSummary, Store


LEAVE = b"qQ"
"""Keys that end the command. Ctrl-C is a signal, and works even if the database does not respond."""

Every = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, max=3600, help="Time between updates.")]
Once = Annotated[bool, typer.Option("--once", help="Print one screen and exit. Default without a terminal.")]


def top(
    every: Every = 1.0,
    once: Once = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Show open problems, flows, jobs, queues, and workers, updated until you press q. This command only reads."""
    console = screen.stdout()
    if once or as_json or not console.is_terminal or console.is_dumb_terminal:
        found = asyncio.run(_look(db, tenant))
        screen.emit(service.as_json(found), lambda: _drawn(found, tenant), as_json)
    else:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the command too
            asyncio.run(_keep_up(db, tenant, every))


async def _look(db: str | None, tenant: str) -> Overview:
    async with opened(db) as store:
        return await service.read(store, await store.tenant(tenant))


def _drawn(found: Overview, tenant: str, height: int | None = None) -> RenderableType:
    return drawn(found, tenant, screen.stdout().width, height)


# --- on a terminal


async def _keep_up(db: str | None, tenant: str, every: float) -> None:
    """Update the screen until the user leaves. An error before the first screen is raised, as in any command."""
    async with opened(db) as store:
        tenant_id = await store.tenant(tenant)
        found = await service.read(store, tenant_id)
        leaving = asyncio.Event()
        with _full_screen() as live, _keys(leaving), _signals(leaving):
            complaint = ""
            while True:
                live.update(_framed(found, tenant, complaint), refresh=True)
                if await _left(leaving, every):
                    return
                found, complaint = await _again(store, tenant_id, found)


async def _left(leaving: asyncio.Event, seconds: float) -> bool:
    """Return whether the user leaves within this time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(leaving.wait(), seconds)
    return leaving.is_set()


async def _again(store: Store, tenant_id: int, before: Overview) -> tuple[Overview, str]:
    """Read the current state. If the database is unreachable, return the previous state and the reason."""
    try:
        return await service.read(store, tenant_id), ""
    except StoreError as error:
        return before, f"What you see is old: {error}"


def _framed(found: Overview, tenant: str, complaint: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    height = screen.stdout().height - bool(complaint)
    picture = _drawn(found, tenant, height)
    return Group(Text(complaint, "bold red", no_wrap=True, overflow="ellipsis"), picture) if complaint else picture


@contextmanager
def _full_screen() -> Iterator[Live]:
    """Use the whole terminal, and restore its content afterwards."""
    from rich.live import Live

    with Live(console=screen.stdout(), screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        yield live


@contextmanager
def _keys(leaving: asyncio.Event) -> Iterator[None]:
    """Read typed keys without echo. If stdin is not a terminal, read nothing."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()

    def typed() -> None:
        signs = os.read(keyboard, 1024)
        if not signs or set(signs) & set(LEAVE):
            leaving.set()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, typed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextmanager
def _signals(leaving: asyncio.Event) -> Iterator[None]:
    """Leave on SIGTERM and SIGHUP, so that the terminal is restored."""
    loop, told = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGHUP)
    for number in told:
        loop.add_signal_handler(number, leaving.set)
    try:
        yield
    finally:
        for number in told:
            loop.remove_signal_handler(number)


# Draw the screen of `keptwork top`, fitted to the width and height of the terminal.


BARS = "▁▂▃▄▅▆▇█"
BAR = 20
QUEUES = ("queued", "running", "paused", "oldest due", "held")
VERY_NARROW = 60
HEADING = 2
"""Lines of a section in addition to its rows: an empty line, and the headings."""


class Section(NamedTuple):
    """A table. The title heads the first column; the columns at the indexes in `figures` are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str | Text, ...]]
    figures: tuple[int, ...] = ()


def drawn(found: Overview, tenant: str, width: int, height: int | None = None) -> RenderableType:
    """Return all sections, or as much as fits the height."""
    from rich.console import Group

    sections = [section for section in _sections(found, width) if section.rows]
    lines = [_head(found, tenant), _pace(found, width), _needs(found)]
    above = sum(len(line.wrap(screen.stdout(), width)) for line in lines)
    room = None if height is None else height - above - HEADING * len(sections)
    shares = fair([len(section.rows) for section in sections], room)
    parts = [part for section, most in zip(sections, shares, strict=True) for part in _section_drawn(section, most)]
    return Group(*lines, *parts)


def fair(wanted: Sequence[int], room: int | None) -> list[int]:
    """Return how many lines each section gets: what it wants, or else an equal share of the room.

    Sections that want little get all of it.

    >>> fair([3, 50, 2], None), fair([3, 50, 2], 20), fair([30, 50], 21), fair([5, 5], -3)
    ([3, 50, 2], [3, 15, 2], [10, 11], [0, 0])
    """
    if room is None:
        return list(wanted)
    given, left = [0] * len(wanted), max(0, room)
    smallest_first = sorted(range(len(wanted)), key=wanted.__getitem__)
    for turn, place in enumerate(smallest_first):
        given[place] = min(wanted[place], left // (len(wanted) - turn))
        left -= given[place]
    return given


def sparkline(counts: Sequence[int]) -> str:
    """Return numbers as small bars.

    >>> sparkline([0, 1, 4, 8]), sparkline([0, 0])
    (' ▁▄█', '  ')
    """
    most = max(counts, default=0)
    return "".join(BARS[max(0, len(BARS) * count // most - 1)] if count else " " for count in counts)


# --- header lines


def _head(found: Overview, tenant: str) -> Text:
    from rich.text import Text

    crowd = f"{len(found.workers):,} {'worker' if len(found.workers) == 1 else 'workers'}"
    facts = f"{found.running:,} running · {found.queued:,} queued · {crowd}"
    return _line(Text.assemble((facts, "bold"), f"  {screen.moment(found.now)[11:19]} UTC  {tenant}"))


def _pace(found: Overview, width: int) -> Text:
    from rich.text import Text

    lately = found.throughput.last_minute
    said = (
        f"{lately.ended:,} ended in the last minute, {lately.failed:,} failed: {found.throughput.per_second:,.1f}/s  "
    )
    shown = found.throughput.minutes[-max(1, width - len(said)) :]
    return _line(Text.assemble(said, (sparkline(_ended(shown)), "green")))


def _ended(minutes: Sequence[Minute]) -> list[int]:
    return [minute.ended for minute in minutes]


def _needs(found: Overview) -> Text:
    from rich.text import Text

    if not found.urgent:
        return Text("All is well: nothing needs you.", "green")
    told = [f"{need.number:,}{'+' * (need.number >= MOST_COUNTED)} {need.says}" for need in found.urgent]
    return Text.assemble(("Needs somebody: ", "bold yellow"), (" · ".join(told), "yellow"))


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


# --- tables


def _sections(found: Overview, width: int) -> list[Section]:
    wide = width >= WIDE_ENOUGH
    return [
        Section("Flows", _columns("state", "steps done", "begun", wide=wide), _flows(found, wide, width)),
        Section("Jobs", _columns("queue", "state", "since", wide=wide), _jobs(found, wide)),
        _queues(found, width),
        Section("Workers", _columns("state", "doing", "seen", wide=wide), _workers(found, wide)),
    ]


def _columns(*headings: str, wide: bool) -> tuple[str, ...]:
    """Return the headings. A wide screen has room for IDs, which are long."""
    return (*headings, "id") if wide else headings


def _flows(found: Overview, wide: bool, width: int) -> list[tuple[str | Text, ...]]:
    bar = BAR if width >= NARROW else BAR // 4
    return [_flow(line, found.now, bar) + ((line.public_id,) if wide else ()) for line in found.flows]


def _flow(line: FlowLine, now: int, width: int) -> tuple[str | Text, ...]:
    from rich.text import Text

    bar = screen.bar(line.done / line.total if line.total else 0, width)
    done = Text.assemble((bar, "cyan"), f" {line.done:,} of {line.total:,}")
    state = "on hold" if line.flow["held_at"] else _state(line.flow["state"])
    return str(line.flow["name"]), state, done, screen.ago(line.flow["created_at"], now)


def _jobs(found: Overview, wide: bool) -> list[tuple[str | Text, ...]]:
    return [
        (job["kind"], job["queue"], _state(job["state"]), screen.ago(job["updated_at"], found.now))
        + ((public_id(JOB.name, job["id"]),) if wide else ())
        for job in found.jobs
    ]


def _queues(found: Overview, width: int) -> Section:
    """Return the queues. A narrow screen shows only the first columns."""
    most = len(QUEUES) if width >= VERY_NARROW else 3
    return Section("Queues", QUEUES[:most], [_queue(queue, found.now)[: most + 1] for queue in found.queues], (1, 2, 5))


def _queue(queue: QueueSummary, now: int) -> tuple[str | Text, ...]:
    from rich.text import Text

    waits, runs, held = (f"{count:,}" for count in (limits.queued(queue), limits.at_work(queue), queue.held))
    paused = Text("") if queue.paused_at is None else Text(screen.ago(queue.paused_at, now), "yellow")
    return queue.name, waits, runs, paused, screen.ago(queue.oldest_due, now), held


def _workers(found: Overview, wide: bool) -> list[tuple[str | Text, ...]]:
    return [_worker(row, found) + ((public_id("worker", row["id"]),) if wide else ()) for row in found.workers]


def _worker(row: Row, found: Overview) -> tuple[str | Text, ...]:
    from rich.text import Text

    most, has = workers.serves(row)["concurrency"], found.held[row["id"]]
    seen = Text(screen.ago(row["seen_at"], found.now), "red" if is_silent(row, found.now) else "")
    return row["name"] or "–", _state(row["state"]), f"{has:,}" if most is None else f"{has:,} of {most:,}", seen


def _state(name: str) -> str:
    return state_name(name.removeprefix("S_").lower())


def _section_drawn(section: Section, most: int) -> list[RenderableType]:
    """Return at most `most` rows as a table. If rows are left out, the title shows the numbers."""
    from rich.table import Table
    from rich.text import Text

    title = section.title if most == len(section.rows) else f"{section.title}, {most:,} of {len(section.rows):,}"
    table = Table(title, *section.headings, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold reverse")
    for place, column in enumerate(table.columns):
        column.no_wrap, column.overflow = True, "ellipsis"
        if place in section.figures:
            column.justify, column.min_width = "right", len(section.headings[place - 1])
    for row in section.rows[:most]:
        table.add_row(*row)
    return [Text(""), table]

"""Draw the screen of `keptwork top`, fitted to the width and height of the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from keptwork.cli import screen
from keptwork.cli.jobs import WIDE_ENOUGH, state_name
from keptwork.cli.run_summary import NARROW
from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import JOB
from keptwork.diagnostics.overview import MOST_COUNTED
from keptwork.jobs import limits_queues
from keptwork.workers import commands as workers
from keptwork.workers.commands import is_silent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from keptwork.diagnostics.overview import FlowLine, Overview, Row
    from keptwork.diagnostics.overview_throughput import Minute
    from keptwork.store import QueueSummary

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

    waits, runs, held = (
        f"{count:,}" for count in (limits_queues.queued(queue), limits_queues.at_work(queue), queue.held)
    )
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

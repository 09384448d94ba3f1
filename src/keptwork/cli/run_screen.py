"""Show the progress of `keptwork run`: redrawn in place on a terminal, a line per change elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from keptwork.cli import screen
from keptwork.cli.run_summary import GLYPHS, NARROW
from keptwork.flows.plan import Phase
from keptwork.flows.queries import took_us
from keptwork.flows.report import cut_of, plain_error, word_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

    from keptwork.flows.live_view import FlowView
    from keptwork.flows.transaction import Row

REDRAW_SECONDS = 0.08
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
MOST_LINES = 30
LAST_ENDED = 5
BAR = 24
BEFORE = {
    "succeeded": "had succeeded",
    "skipped": "had been skipped",
    "failed": "had failed",
    "cancelled": "had been cancelled",
    "running": "was under way",
    "asking": "asks",
    "retrying": "will be tried again",
}
"""Texts for the state that a step had when its flow was resumed."""


class Showing(Protocol):
    """A display of a running flow."""

    def show(self, view: FlowView, moved: list[Row], left_us: float | None) -> None:
        """Show the current state. `moved` has the steps that changed."""

    def note(self, text: str) -> None:
        """Show a message."""

    def pause(self) -> None:
        """Free the terminal for other output."""

    def close(self) -> None:
        """End the display."""


class Unfailing:
    """A display that shows what it can. When its stream fails, the flow continues without one."""

    def __init__(self, inner: Showing, stream: TextIO) -> None:
        self._inner = inner
        self._stream = stream

    def show(self, view: FlowView, moved: list[Row], left_us: float | None) -> None:
        self._attempt(lambda: self._inner.show(view, moved, left_us))

    def note(self, text: str) -> None:
        self._attempt(lambda: self._inner.note(text))

    def pause(self) -> None:
        self._attempt(self._inner.pause)

    def close(self) -> None:
        self._attempt(self._inner.close)

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            screen.abandon(self._stream, error)


class Lines:
    """A line for every step that changes. In a resumed flow, earlier changes are shown without a time."""

    def __init__(self, stream: TextIO, resumed: bool = False) -> None:
        self._stream = stream
        self._resumed = resumed
        self._told: dict[int, str] = {}
        self._named = False

    def show(self, view: FlowView, moved: list[Row], left_us: float | None) -> None:
        if not self._named:
            self._named = True
            self.note(
                f"{view.flow['name']} is {view.ref.public_id}"
            )  # show the ID first: the process can be killed at any time
        before, self._resumed = self._resumed, False
        for row in moved:
            word = word_of(view, row)
            if word != "waiting" and self._told.get(row["id"]) != word:
                self._told[row["id"]] = word
                if before:
                    self._write(f"· {row['name']} {BEFORE.get(word, word)}{_took(row)}{_why(row, word)}")
                else:
                    self.note(self._line(view, row, word))

    def _line(self, view: FlowView, row: Row, word: str) -> str:
        said = {"running": f"begins: {view.about(row)}", "retrying": "will be tried again", "asking": "asks"}.get(
            word, word
        )
        return f"{GLYPHS[_looks(row, word)][0]} {row['name']} {said}{_took(row)}{_why(row, word)}"

    def note(self, text: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def pause(self) -> None:
        return

    def close(self) -> None:
        return


def _took(row: Row) -> str:
    begun, ended = row["started_at"], row["completed_at"]
    return f" in {screen.took(ended - begun)}" if begun and ended else ""


def _why(row: Row, word: str) -> str:
    if cut := _cut(row, word):
        return f", {cut}"
    return f": {plain_error(row['error'])}" if word in ("failed", "retrying") else ""


def _cut(row: Row, word: str) -> str | None:
    return cut_of(row) if word == "succeeded" else None


def _looks(row: Row, word: str) -> str:
    """Return the name of a step's glyph: a step whose output was cut gets no green tick."""
    return "cut" if _cut(row, word) else word


class Picture:
    """All steps, redrawn in place. If there are many: the running, the failed, and the latest finished steps."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._drawn_at = 0.0
        self._undrawn: FlowView | None = None
        self._ended: list[int] = []

    def show(self, view: FlowView, moved: list[Row], left_us: float | None) -> None:
        self._ended += [row["id"] for row in moved if view.phase(row) not in (Phase.WAITING, Phase.ACTIVE)]
        if time.monotonic() - self._drawn_at < REDRAW_SECONDS:
            self._undrawn = view
            return
        self._drawn_at, self._undrawn = time.monotonic(), None
        if self._live is None:
            self._live = _begun()
        self._live.update(self.drawn(view, left_us), refresh=True)

    def note(self, text: str) -> None:
        screen.stdout().print(text, soft_wrap=True)

    def pause(self) -> None:
        """Draw the latest state, then erase the display.

        The next `show` draws a new display below. A restarted display would erase what was written meanwhile.
        """
        if self._live is not None:
            if self._undrawn is not None:
                self._live.update(self.drawn(self._undrawn, None))
            self._live.stop()
        self._live = self._undrawn = None

    def close(self) -> None:
        self.pause()

    def drawn(self, view: FlowView, left_us: float | None) -> RenderableType:
        """Return a line for each step, and a line for the whole flow."""
        from rich.console import Group
        from rich.table import Table

        table = Table.grid(padding=(0, 2), expand=True)
        for column in ({"width": 1}, {"no_wrap": True, "max_width": 32}, {"justify": "right", "no_wrap": True}):
            table.add_column(**column)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for row in self._chosen(view):
            table.add_row(*_step(view, row))
        return Group(_heading(view), table, _footer(view, left_us))

    def _chosen(self, view: FlowView) -> list[Row]:
        room = min(MOST_LINES, max(5, screen.stdout().height - 4))
        if len(view.steps) <= room:
            return list(view.steps.values())
        ended = set(self._ended[-LAST_ENDED:])
        failed = {row["id"] for row in view.in_phase(Phase.FAILED)}
        running = {row["id"] for row in view.in_phase(Phase.ACTIVE)}
        chosen = [row for row in view.steps.values() if row["id"] in running | failed | ended]
        return chosen[-room:]


def _begun() -> Live:
    from rich.live import Live

    # What is written to stderr appears above the display, unless stderr is a file.
    live = Live(
        console=screen.stdout(),
        auto_refresh=False,
        transient=True,
        vertical_overflow="crop",
        redirect_stderr=sys.stderr.isatty(),
    )
    live.start()
    return live


def _heading(view: FlowView) -> Text:
    from rich.text import Text

    return Text.assemble((view.flow["name"], "bold"), "  ", (view.ref.public_id, "dim"))


def _step(view: FlowView, row: Row) -> tuple[Text, Text, Text, Text]:
    from rich.text import Text

    word = word_of(view, row)
    glyph, style = GLYPHS[_looks(row, word)]
    if word == "running":
        glyph = SPINNER[int(time.monotonic() * 10) % len(SPINNER)]
    us = took_us(row, view.now)
    took = "" if us is None else _clock(us)
    name = Text(str(row["name"]), "dim" if word == "waiting" else "")
    return Text(glyph, style), name, Text(took, "dim"), _detail(view, row, word)


def _detail(view: FlowView, row: Row, word: str) -> Text:
    from rich.text import Text

    if word in ("failed", "retrying"):
        return Text(plain_error(row["error"]), GLYPHS[word][1])
    if cut := _cut(row, word):
        return Text(cut, GLYPHS["cut"][1])
    if word != "running":
        return Text(view.about(row), "dim" if word != "asking" else "")
    parts = []
    if inside := view.inside(row):
        parts.append(f"{inside.done:,} of {inside.total:,}")
    if row["id"] in view.said:
        parts.append(view.said[row["id"]])
    return Text(" · ".join(parts), "cyan") if parts else Text(view.about(row), "dim")


def _clock(us: int) -> str:
    """Return the duration so far, with a fixed number of digits so that it does not flicker.

    >>> _clock(40_000), _clock(12_345_678), _clock(75_000_000)
    ('0.0 s', '12.3 s', '1m 15s')
    """
    return f"{max(0, us) / 1_000_000:.1f} s" if us < 60_000_000 else screen.took(us)


def _footer(view: FlowView, left_us: float | None) -> Text:
    from rich.text import Text

    total = len(view.steps)
    done = len(view.in_phase(Phase.SATISFIED))
    width = BAR if screen.stdout().width >= NARROW else BAR // 3
    full = width * done // max(total, 1)
    facts = [f"{done:,} of {total:,}", f"{len(view.in_phase(Phase.ACTIVE)):,} running"]
    facts.append(_clock(view.now - view.flow["created_at"]))
    if left_us is not None and left_us >= 1_000_000:
        facts.append(f"about {screen.span(round(left_us))} left")
    bar = Text.assemble(("━" * full, "green"), ("━" * (width - full), "bright_black"))
    return bar.append(f"  {' · '.join(facts)}")


def showing(as_json: bool, resumed: bool = False) -> Showing:
    """Return a display: redrawn on a capable terminal, otherwise lines. With JSON, the lines go to stderr."""
    if as_json:
        return Unfailing(Lines(sys.stderr, resumed), sys.stderr)
    console = screen.stdout()
    drawn = console.is_terminal and not console.is_dumb_terminal and not console.no_color
    return Unfailing(Picture() if drawn else Lines(sys.stdout, resumed), sys.stdout)

"""Record docs/images/run.svg: run `keptwork run examples/release.yaml` on a terminal and draw two of its screens.

Run it with `make picture`. The command runs for real in a pseudo-terminal, on a database in a temporary directory. The
first screen is the one with the most steps running, the second is taken after the command has ended.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
IMAGE = ROOT / "docs" / "images" / "run.svg"
COLUMNS, LINES = 100, 40
SHOWN = "keptwork run examples/release.yaml"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        screens = list(recorded(Path(folder)))
    during = max(reversed(screens), key=running)
    IMAGE.write_text(drawn([*typed(), *during, Text(), Text("… and at the end:", "dim"), Text(), *ending(screens[-1])]))
    print(IMAGE.relative_to(ROOT))


def recorded(folder: Path) -> Iterator[list[Text]]:
    """Run the command on a pseudo-terminal and yield its screen after each piece of output."""
    command = [str(Path(sys.executable).with_name("keptwork")), *SHOWN.split()[1:], "--yes"]
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
    env = {**os.environ, **size, "KEPTWORK_DB": f"sqlite:///{folder}/run.db"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env)
    os.close(theirs)
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    for piece in output(ours):
        stream.feed(piece)
        yield trimmed(screen)
    if code := process.wait():
        raise SystemExit(f"{SHOWN} ended with exit code {code}")


def output(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a pseudo-terminal as an error
            return
        if not piece:
            return
        yield piece


def trimmed(screen: pyte.Screen) -> list[Text]:
    """Return the lines of a screen with their styles, without empty lines at its end."""
    lines = [styled(screen, row) for row in range(screen.lines)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return lines


def styled(screen: pyte.Screen, row: int) -> Text:
    line = Text()
    for column in range(screen.columns):
        cell = screen.buffer[row][column]
        line.append(cell.data, style(cell))
    line.rstrip()
    return line


def style(cell: pyte.screens.Char) -> str:
    """Return the style of a character in rich's words."""
    color = cell.fg.replace("brown", "yellow")  # pyte names the third color as terminals of old did
    if color.startswith("bright"):
        color = f"bright_{color.removeprefix('bright').replace('brown', 'yellow')}"
    elif len(color) == 6 and all(digit in "0123456789abcdef" for digit in color):
        color = f"#{color}"
    return f"{'bold ' if cell.bold else ''}{color}"


def running(screen: list[Text]) -> int:
    """Return how many steps a screen shows as running."""
    counts = (re.search(r"· (\d+) running ·", line.plain) for line in screen)
    return max((int(count[1]) for count in counts if count), default=0)


def ending(screen: list[Text]) -> list[Text]:
    """Return what the command printed last: the summary of the flow."""
    first = next(n for n, line in enumerate(screen) if "succeeded after" in line.plain)
    return screen[first:]


def typed() -> list[Text]:
    return [Text.assemble(("$ ", "dim"), (SHOWN, "bold")), Text()]


def drawn(lines: list[Text]) -> str:
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line, soft_wrap=True)
    return console.export_svg(title="keptwork run", unique_id="keptwork-run")


if __name__ == "__main__":
    main()

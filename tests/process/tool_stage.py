"""What the tests of tools do again and again, and the checks that broken twins must fail."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from keptwork.process.pool import Ending
from keptwork.process.tool import Command, Output, Tools
from tests.process.survivors import NAME, survivors

PATH = "/usr/bin:/bin"
RUNAWAY = str(Path(__file__).with_name("runaway.py"))
TWIN = "tests.process.groups_only"
GRACE = 0.3
ROOM = 100
"""For the note that something was left out."""

Run = Callable[[Sequence[str]], Awaitable[bytes]]


async def run(tools: Tools, *argv: str, stdin: bytes = b"", mark: str = "") -> tuple[Ending, Output]:
    output = Output()
    return await tools.run(Command(argv, {"PATH": PATH, NAME: mark}, stdin=stdin), output), output


def runaway(mark: str, begun: Path, *quiet: str) -> Command:
    return Command((sys.executable, "-S", RUNAWAY, str(begun), *quiet), {"PATH": PATH, NAME: mark})


async def argv_seen(tools: Tools, argv: Sequence[str]) -> bytes:
    """The arguments a program has, as the kernel tells them: each with a NUL at its end."""
    _, output = await run(tools, "sh", "-c", "cat /proc/$$/cmdline", "sh", *argv)
    return output.stdout.content


def expected(argv: Sequence[str]) -> bytes:
    return b"".join(part.encode() + b"\0" for part in ("sh", "-c", "cat /proc/$$/cmdline", "sh", *argv))


def outlived(mark: str, grace: float = GRACE) -> list[int]:
    """Who of a tool is alive later than it may be."""
    return survivors(mark, grace + 2)


def over_the_cap(output: Output, most: int) -> list[str]:
    """Which streams keep more than they may."""
    streams = {"stdout": output.stdout, "stderr": output.stderr}
    return [name for name, kept in streams.items() if len(kept.content) > most + ROOM]


def elapsed(since: float) -> float:
    return time.monotonic() - since

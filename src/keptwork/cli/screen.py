"""Print the output of commands: results on stdout as text or JSON, everything else on stderr, times in UTC.

Rich is imported when something is first drawn. Help and JSON do not need it.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, BinaryIO, TextIO

import typer

from keptwork.core.durations import ago as ago
from keptwork.core.durations import ahead as ahead
from keptwork.core.durations import moment as moment
from keptwork.core.durations import size as size
from keptwork.core.durations import span as span
from keptwork.core.durations import took as took
from keptwork.errors import CannotWriteFile

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


# Exported again, so that commands import all text helpers from this module.


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""The option of every command."""

Search = Annotated[
    str | None,
    typer.Option(
        "--text", metavar="TEXT", help="Text that results must contain. Each call searches a few thousand entries."
    ),
]
"""The option of lists that support a text search."""

WIDE = 200  # a piped table is not folded to the width of a terminal that does not show it


@cache
def stdout() -> Console:
    """Return the console for results."""
    return _console(sys.stdout)


@cache
def stderr() -> Console:
    """Return the console for progress, warnings, and errors."""
    return _console(sys.stderr)


def emit(value: Any, human: Callable[[], RenderableType], as_json: bool) -> None:
    """Print a result: the value as JSON, or what `human` draws."""
    if as_json:
        print(json.dumps(value, indent=2))
    else:
        drawn = human()
        stdout().print(drawn, soft_wrap=isinstance(drawn, str), crop=False)


def unfolded(line: str) -> Text:
    """Return a line that a narrow screen does not fold, because a folded command cannot be copied."""
    from rich.text import Text

    return Text(line, no_wrap=True, overflow="ignore")


def table(*headings: str) -> Table:
    """Return an empty table in the common style."""
    from rich import box
    from rich.table import Table

    return Table(*headings, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


@contextmanager
def progress(doing: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr and yield its update function (done, total). Without a terminal, show nothing."""
    if not stderr().is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    count = TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit)
    columns = (TextColumn(doing), BarColumn(), TaskProgressColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(doing, total=0)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def complain(problem: str | dict[str, Any]) -> None:
    """Print a problem to stderr, as text or JSON. It has no style, so that it is the same in a log."""
    write(problem if isinstance(problem, str) else json.dumps(problem), sys.stderr)


def write(text: str, stream: TextIO, end: str = "\n") -> bool:
    """Write a text immediately and return whether that worked. After a failure the stream is abandoned."""
    try:
        print(text, end=end, file=stream, flush=True)
    except OSError as error:
        abandon(stream, error)
        return False
    return True


def abandon(stream: TextIO, error: OSError) -> None:
    """Discard everything else that is written to a stream whose reader left or whose disk is full."""
    with suppress(OSError, ValueError):  # a stream that a test replaced has no descriptor
        discarded = os.open(os.devnull, os.O_WRONLY)
        os.dup2(discarded, stream.fileno())
        os.close(discarded)
    if stream is not sys.stderr and not reader_left(error):
        complain(f"keptwork: output can no longer be written: {error.strerror}. The work continues.")


def reader_left(error: OSError) -> bool:
    """Return whether a write failed only because the reader of a pipe closed it."""
    return error.errno == errno.EPIPE


def bar(fraction: float, width: int) -> str:
    """Return a bar that is filled to a fraction.

    >>> bar(0.42, 20), bar(7, 3)
    ('████████░░░░░░░░░░░░', '███')
    """
    full = min(max(int(fraction * width), 0), width)
    return f"{'█' * full}{'░' * (width - full)}"


def survive_closed_streams() -> None:
    """Discard what is written to a stream that was closed before the start (`>&-`). Otherwise the next file that is
    opened, such as the database, gets its descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def survive_any_encoding() -> None:
    """Print the code of a character that a terminal cannot encode, so that printing never fails."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _console(stream: Any) -> Console:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise  # called while the error is handled; Rich would end the process here

    # Printed text comes from users and tools: brackets and colons in it are not markup or emoji.
    console = Plain(file=stream, markup=False, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


# Write a file completely or not at all.


@contextmanager
def written_whole(path: Path | None) -> Iterator[TextIO]:
    """Open stdout, or a file that gets its name only when the block succeeds.

    A path that is not a regular file (a pipe, a device) is written directly, because it must not be replaced.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        return
    with _whole(path, encoding="utf-8") as file:
        yield file


@contextmanager
def bytes_written_whole(path: Path | None) -> Iterator[BinaryIO]:
    """Do the same for bytes."""
    if path is None or str(path) == "-":
        yield sys.stdout.buffer
        return
    with _whole(path, binary="b") as file:
        yield file


@contextmanager
def _whole(path: Path, binary: str = "", encoding: str | None = None) -> Iterator[Any]:
    target = path.resolve()
    try:
        if target.exists() and not target.is_file():
            with target.open(f"w{binary}", encoding=encoding) as file:
                yield file
        else:
            with _renamed_when_complete(target, f"x{binary}", encoding) as file:
                yield file
    except OSError as error:
        detail = error.strerror or str(error)
        raise CannotWriteFile(path=path, detail=detail[:1].lower() + detail[1:]) from error


@contextmanager
def _renamed_when_complete(target: Path, mode: str, encoding: str | None) -> Iterator[IO[Any]]:
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open(mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise

"""Show the progress of `keptwork work`: one updating line on a terminal, occasional lines elsewhere. Also sets up
logging and tracing for long-running commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.observability import logs

if TYPE_CHECKING:
    from keptwork.workers.heartbeat_report import Doing

GLANCE_SECONDS = 0.25
LOG_SECONDS = 30.0

# Outcomes of jobs with their labels, in display order.
OUTCOMES = {
    "succeed": "succeeded",
    "retry": "retried",
    "snooze": "snoozed",
    "fail": "failed",
    "dead_letter": "dead-lettered",
    "cancel": "cancelled",
    "release": "given back",
}

Log = Annotated[
    str | None,
    typer.Option("--log", metavar="FORM", help="Log format: text or json. Default: $KEPTWORK_LOG, then text."),
]
"""The option of every command that logs."""

log = logging.getLogger("keptwork")


def line(doing: Doing) -> str:
    """Return what a worker is doing as one line.

    >>> from keptwork.workers.heartbeat_report import Doing
    >>> line(Doing(2, 32, {"succeed": 1234, "dead_letter": 1}, 41.3))
    '2 of 32 at work · 1,234 succeeded · 1 dead-lettered · 41/s'
    """
    parts = [f"{min(doing.in_hand, doing.concurrency)} of {doing.concurrency} at work", *outcomes(doing)]
    return " · ".join(parts + ([f"{doing.per_second:,.0f}/s"] if doing.per_second >= 1 else []))


def outcomes(doing: Doing) -> list[str]:
    """Return the number of jobs with each outcome."""
    return [f"{doing.outcomes[move]:,} {word}" for move, word in OUTCOMES.items() if doing.outcomes.get(move)]


@contextmanager
def observed(service: str, form: str | None) -> Iterator[None]:
    """Log to stderr in this format, and send spans where the environment configures."""
    from keptwork.observability import otel

    wanted = logs.form_wanted(form)
    with logs.to_stderr(wanted, console_handler()), otel.traced(service):
        yield


def shows_json(form: str | None) -> bool:
    """Return whether stderr must contain only lines of JSON."""
    return logs.form_wanted(form) == logs.JSON


def announce(text: str, form: str | None) -> None:
    """Print or log a start message."""
    if shows_json(form):
        log.info("%s", text)
    else:
        screen.stderr().print(text, highlight=False)


def console_handler() -> logging.Handler | None:
    """Return a log handler that keeps text apart from the updating line, or None without a terminal."""
    if not screen.stderr().is_terminal:
        return None
    from rich.highlighter import NullHighlighter
    from rich.logging import RichHandler

    handler = RichHandler(
        console=screen.stderr(), show_path=False, highlighter=NullHighlighter(), log_time_format="%H:%M:%S"
    )
    handler.setFormatter(logs.Text("%(message)s"))
    return handler


async def watch(look: Callable[[], Doing | None], form: str | None = None) -> None:
    """Show what a worker does, until cancelled."""
    if screen.stderr().is_terminal and not shows_json(form):
        await _keep_up(look)
    else:
        await _log_now_and_then(look)


async def _keep_up(look: Callable[[], Doing | None]) -> None:
    def say() -> str:
        doing = look()
        return line(doing) if doing else "starting"

    await keep_up(say)


async def keep_up(say: Callable[[], str]) -> None:
    """Show one updating line on the terminal, until cancelled."""
    from rich.live import Live
    from rich.text import Text

    with Live(console=screen.stderr(), auto_refresh=False, transient=True) as live:
        while True:
            live.update(Text(say(), no_wrap=True, overflow="ellipsis"), refresh=True)
            await asyncio.sleep(GLANCE_SECONDS)


async def _log_now_and_then(look: Callable[[], Doing | None]) -> None:
    told: dict[str, int] = {}
    while True:
        await asyncio.sleep(LOG_SECONDS)
        doing = look()
        if doing is not None and doing.outcomes != told:
            told = doing.outcomes
            log.info("%s", line(doing))

"""`keptwork work`: run the jobs of an application in this process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import Db
from keptwork.cli.migrate import migrated
from keptwork.errors import BadInput, StoreError
from keptwork.observability import logs
from keptwork.workers import process_exit
from keptwork.workers.supervisor_link import Bond, bound_to_supervisor

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.workers.heartbeat import Doing


# Show the progress of `keptwork work`: one updating line on a terminal, occasional lines elsewhere. Also sets up
# logging and tracing for long-running commands.


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

    >>> from keptwork.workers.heartbeat import Doing
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


Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Application, such as shop.jobs:app.")]
AnyTarget = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", help="Application, such as shop.jobs:app. Default: run only steps of flows."),
]
Queues = Annotated[str, typer.Option(help="Queues to serve, separated by commas. Empty: the queues of the app's jobs.")]
Lease = Annotated[
    str | None, typer.Option(help="Time that a claim is valid without renewal. Default: as each job declares.")
]
Grace = Annotated[str, typer.Option(help="Time that running jobs have to finish after SIGTERM.")]
MaxMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory use above which the worker pauses, such as 1GiB.")
]
SupervisorTimeout = Annotated[
    str, typer.Option(metavar="SPAN", help="Time without a heartbeat after which workers are terminated.")
]


Server = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Server to work for over HTTP, without a database. Reads its key from KEPTWORK_KEY."
    ),
]
KeyFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="File with the key for --server. Default: KEPTWORK_KEY.")
]


Migrate = Annotated[bool, typer.Option("--migrate", help="Create the database or bring it up to date first.")]


def work(
    target: AnyTarget = None,
    db: Db = None,
    server: Server = None,
    key_file: KeyFile = None,
    queues: Queues = "",
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum concurrent jobs.")] = 32,
    lease: Lease = None,
    grace: Grace = "30s",
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when all due jobs are finished.")] = False,
    max_memory: MaxMemory = None,
    supervisor_timeout: SupervisorTimeout = "60s",
    migrate: Migrate = False,
    log: Log = None,
    as_json: screen.Json = False,
) -> None:
    """Claim and run jobs until stopped, and show their outcomes on stderr.

    SIGTERM or Ctrl-C lets running jobs finish and releases the others. A terminated worker exits with code 3, an
    exhausted worker with code 4.

    Without --migrate, a missing or outdated database is rejected with exit code 2.
    """
    if server is not None and db is not None:
        raise BadInput(what="a worker has a database (--db) or works for a server (--server), not both")
    if server is not None and migrate:
        raise BadInput(what="--migrate needs a database, and a worker with --server has none; leave out one of them")
    bond = bound_to_supervisor()
    app = _for_flows(db) if target is None else application(target, db)
    app.creates = False
    served = tuple(name for name in queues.split(",") if name)
    asked: list[bool] = []

    def stop() -> None:
        """Stop the app. This also works while the database is being opened, before there is a worker."""
        asked.append(True)
        app.stop()

    async def run() -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        async with _opened(app, bond) if server is None else contextlib.nullcontext():
            if asked:
                return 0
            shown = asyncio.create_task(watch(app.doing, log))
            try:
                return await app.work(
                    queues=served or None,
                    concurrency=concurrency,
                    lease=lease,
                    grace=grace,
                    until_idle=until_idle,
                    max_memory=max_memory,
                    supervisor_timeout=supervisor_timeout,
                    own_process=True,
                    bond=bond,
                    server=server,
                    key_file=key_file,
                )
            finally:
                shown.cancel()
                await asyncio.wait([shown])

    with observed("keptwork-worker", log), process_exit.reported():
        announce(_announcement(app, target or "steps of flows", served, concurrency), log)
        if migrate:
            with _refusals_told(bond):
                migrated(app.url)
        settled = asyncio.run(run())
        summary = f"{settled:,} {'job' if settled == 1 else 'jobs'} settled."
        if bond is not None:  # the stdout of a supervised worker is the stderr of its supervisor
            announce(summary, log)
    if bond is None:
        screen.emit({"settled": settled}, lambda: summary, as_json)


@contextlib.asynccontextmanager
async def _opened(app: Keptwork, bond: Bond | None) -> AsyncIterator[None]:
    with _refusals_told(bond):
        await app.open()
    async with app:
        yield


@contextlib.contextmanager
def _refusals_told(bond: Bond | None) -> Iterator[None]:
    """Report an error to the supervisor if a restart would only repeat it."""
    try:
        yield
    except StoreError as error:
        if bond is not None and error.lasting:
            bond.refuse(str(error))
        raise


def _for_flows(db: str | None) -> Keptwork:
    """Return an application without jobs, for steps of flows. Functions of steps are found from this directory."""
    from keptwork.app import Keptwork

    sys.path.insert(0, str(Path.cwd()))
    return Keptwork(db)


def application(target: str, db: str | None) -> Keptwork:
    """Import the application that the user named. An unknown name is reported in one line."""
    from keptwork.app import Keptwork

    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise BadInput(what=f"{target!r} names no application; write MODULE:APP, as in shop.jobs:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as missing:
        raise BadInput(what=f"there is no module {missing.name!r} to import for {target}, seen from here") from missing
    if not isinstance(found, Keptwork):
        raise BadInput(what=f"{module} has no application {name!r}; it should say: {name} = Keptwork()")
    if db is not None:
        found.url = db
    return found


def _announcement(app: Keptwork, target: str, queues: tuple[str, ...], concurrency: int) -> str:
    kinds = ", ".join(sorted(app.kinds)) or "no jobs of its own"
    served = ", ".join(queues or app.queues)
    return f"{target}: serving {served}, {concurrency} jobs at a time; it knows {kinds}. SIGTERM or Ctrl-C ends it."

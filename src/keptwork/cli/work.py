"""`keptwork work`: run the jobs of an application in this process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen, work_watch
from keptwork.cli.database import Db
from keptwork.cli.migrate import migrated
from keptwork.errors import BadInput, StoreError
from keptwork.workers import process_exit
from keptwork.workers.supervisor_link_bond import Bond, bound_to_supervisor

if TYPE_CHECKING:
    from keptwork.app import Keptwork


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
    log: work_watch.Log = None,
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
            shown = asyncio.create_task(work_watch.watch(app.doing, log))
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

    with work_watch.observed("keptwork-worker", log), process_exit.reported():
        work_watch.announce(_announcement(app, target or "steps of flows", served, concurrency), log)
        if migrate:
            with _refusals_told(bond):
                migrated(app.url)
        settled = asyncio.run(run())
        summary = f"{settled:,} {'job' if settled == 1 else 'jobs'} settled."
        if bond is not None:  # the stdout of a supervised worker is the stderr of its supervisor
            work_watch.announce(summary, log)
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

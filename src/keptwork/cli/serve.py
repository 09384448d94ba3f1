"""`keptwork serve`: serve the HTTP API and the dashboard, for callers with an API key of the database."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork import settings as configuration
from keptwork.cli import screen, work
from keptwork.cli.database import Burst, Db, MaxInFlight, MaxQueued, MaxStreams, RequestsPerSecond, opened
from keptwork.cli.tools import File
from keptwork.cli.work import application
from keptwork.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI

    from keptwork.app import Keptwork
    from keptwork.http.rate_limit import Limits
    from keptwork.http.server import Server
    from keptwork.settings import Config
    from keptwork.settings import Server as ServerSettings


Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on. Use 0.0.0.0 for every network.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on. Use 0 for any free port.")]

LOOPBACK = "127.0.0.1"


Programs = Annotated[
    bool,
    typer.Option("--programs", help="Accept flows that define programs to run, from keys with the admin scope."),
]


def serve(
    host: Host = LOOPBACK,
    port: Port = 8321,
    requests_per_second: RequestsPerSecond = None,
    burst: Burst = None,
    max_in_flight: MaxInFlight = None,
    max_streams: MaxStreams = None,
    max_queued: MaxQueued = None,
    programs: Programs = False,
    config: File = None,
    db: Db = None,
    log: work.Log = None,
    as_json: screen.Json = False,
) -> None:
    """Serve the HTTP API and the dashboard until stopped.

    The server also maintains leases, schedules, and flows, so that workers need no database. SIGTERM or Ctrl-C lets
    requests finish and closes streams. Callers need a key.

    Limits apply to each tenant; 0 means unlimited. Defaults come from `[server]` in the configuration. A tenant can
    have its own limits, see: keptwork tenants limit
    """
    from_extra()
    said = {
        "requests_per_second": requests_per_second,
        "burst": burst,
        "max_in_flight": max_in_flight,
        "max_streams": max_streams,
        "max_queued": max_queued,
    }
    settings = configuration.read(config)
    limits = _limits(settings.server, {name: one for name, one in said.items() if one is not None}, programs)
    with work.observed("keptwork-server", log):
        asyncio.run(_served(host, port, limits, settings, db, as_json))


def _limits(server: ServerSettings, said: dict[str, int], programs: bool) -> Limits:
    """Return the limits of the configuration file, overridden by those of the command line."""
    from keptwork.http.rate_limit import Limits

    return Limits(
        allowance=replace(server.allowance, **said),
        failed_keys_per_minute=server.failed_keys_per_minute,
        row_security=server.row_security,
        programs=programs,
    )


async def _served(host: str, port: int, limits: Limits, settings: Config, db: str | None, as_json: bool) -> None:
    from keptwork.dashboard.site import install
    from keptwork.http.app import create_app
    from keptwork.http.auth import kept_keys, narrows

    async with opened(db) as store:
        if limits.row_security == "require":
            await narrows(store, limits.row_security)
        app = create_app(store, kept_keys(store), limits, settings)
        install(app)
        await run(app, host, port, as_json)


def from_extra() -> None:
    """Raise an error that names the extra if the packages of the server are not installed."""
    try:
        import fastapi  # noqa: F401 - only whether it is installed
        import httptools  # noqa: F401
        import jinja2  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as missing:
        raise MissingExtra(what="The HTTP server", extra="server") from missing


async def run(
    app: FastAPI, host: str, port: int, as_json: bool, token: str | None = None, beside: asyncio.Task[int] | None = None
) -> None:
    """Serve until a signal arrives or the task `beside` ends, and print the address when the server listens.

    Without the worker in `beside`, the server runs the maintenance duties itself.
    """
    from keptwork.http.server import listening_on, server
    from keptwork.maintenance.runner import keeping_house

    with listening_on(host, port) as listening:
        made = server(app, host, port)
        if beside is not None:
            beside.add_done_callback(made.end)
        told = asyncio.create_task(_announced(made, listening.getsockname(), as_json, token))
        try:
            async with keeping_house(app.state.store if beside is None else None):
                await made.serve([listening])
        finally:
            told.cancel()
            await asyncio.wait([told])


async def _announced(made: Server, place: tuple[str, int], as_json: bool, token: str | None) -> None:
    await made.begun.wait()
    host, port = place[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    # The part after # stays in the browser: neither a log nor another site receives it.
    shown = f"{address}/#token={token}" if token else address
    facts = {"address": address} | ({"token": token} if token else {})
    screen.emit(facts, lambda: f"Serving {shown} (routes: /docs). SIGTERM or Ctrl-C ends it.", as_json)
    sys.stdout.flush()  # a program can wait for this line at the other end of a pipe


# `keptwork dev`: run a server and a worker in one process on this machine, with a temporary token.


App = Annotated[
    str | None, typer.Argument(metavar="[MODULE:APP]", help="Application whose jobs run, such as shop.jobs:app.")
]


def dev(
    target: App = None,
    host: Host = LOOPBACK,
    port: Port = 8321,
    db: Db = None,
    log: work.Log = None,
    as_json: screen.Json = False,
) -> None:
    """Serve the HTTP API and the dashboard and run jobs in one process, for development.

    The server listens on this machine only and accepts only the token that it prints. A missing database is created.
    """
    from_extra()
    if not _is_loopback(host):
        raise BadInput(what=f"keptwork dev serves this machine only, not {host}; for a network use: keptwork serve")
    app = None if target is None else application(target, db)
    with work.observed("keptwork-dev", log):
        asyncio.run(_both(app, host, port, db, as_json))


async def _both(app: Keptwork | None, host: str, port: int, db: str | None, as_json: bool) -> None:
    """Run the server and the worker until the server ends."""
    from keptwork.access.scopes import Scope
    from keptwork.dashboard.site import install
    from keptwork.http.app import create_app
    from keptwork.http.auth import Caller, one_token
    from keptwork.http.rate_limit import Limits
    from keptwork.settings import read
    from keptwork.store import open_store
    from keptwork.store.contract.records import DEFAULT_TENANT

    token = f"kw_dev_{secrets.token_urlsafe(32)}"
    caller = Caller(DEFAULT_TENANT, frozenset(Scope), "dev")
    working = None
    async with AsyncExitStack() as ending:
        store = await open_store(db if app is None else app.url)
        ending.push_async_callback(store.close)
        if app is not None:
            await ending.enter_async_context(app)
            working = asyncio.create_task(app.work())
            ending.push_async_callback(_finished, app, working)
        made = create_app(store, one_token(token, caller), Limits(programs=True), read())
        install(made)
        await run(made, host, port, as_json, token, working)


async def _finished(app: Keptwork, working: asyncio.Task[int]) -> None:
    app.stop()
    await working


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""`keptwork dev`: run a server and a worker in one process on this machine, with a temporary token."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen, work_watch
from keptwork.cli.database import Db
from keptwork.cli.serve import LOOPBACK, Host, Port, from_extra, run
from keptwork.cli.work import application
from keptwork.errors import BadInput

if TYPE_CHECKING:
    from keptwork.app import Keptwork

App = Annotated[
    str | None, typer.Argument(metavar="[MODULE:APP]", help="Application whose jobs run, such as shop.jobs:app.")
]


def dev(
    target: App = None,
    host: Host = LOOPBACK,
    port: Port = 8321,
    db: Db = None,
    log: work_watch.Log = None,
    as_json: screen.Json = False,
) -> None:
    """Serve the HTTP API and the dashboard and run jobs in one process, for development.

    The server listens on this machine only and accepts only the token that it prints. A missing database is created.
    """
    from_extra()
    if not _is_loopback(host):
        raise BadInput(what=f"keptwork dev serves this machine only, not {host}; for a network use: keptwork serve")
    app = None if target is None else application(target, db)
    with work_watch.observed("keptwork-dev", log):
        asyncio.run(_both(app, host, port, db, as_json))


async def _both(app: Keptwork | None, host: str, port: int, db: str | None, as_json: bool) -> None:
    """Run the server and the worker until the server ends."""
    from keptwork.access.scopes import Scope
    from keptwork.dashboard.site import install
    from keptwork.http.app import create_app
    from keptwork.http.auth import Caller, one_token
    from keptwork.http.rate_limit_requests import Limits
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

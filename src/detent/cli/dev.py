"""`detent dev`: server and worker together on one's own machine, with a token made for this time."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from detent.cli import screen, watch
from detent.cli.database import Db
from detent.cli.serve import LOOPBACK, Host, Port, from_extra, run
from detent.cli.work import application
from detent.errors import BadInput

if TYPE_CHECKING:
    from detent.app import Detent

App = Annotated[
    str | None, typer.Argument(metavar="[MODULE:APP]", help="The application whose jobs are run, as in shop.jobs:app.")
]


def dev(
    target: App = None,
    host: Host = LOOPBACK,
    port: Port = 8321,
    db: Db = None,
    log: watch.Log = None,
    as_json: screen.Json = False,
) -> None:
    """Serve the HTTP API and the dashboard and run jobs in one process, for development: on this machine only, for
    whoever has the token it prints. A database that is not there is made."""
    from_extra()
    if not _is_loopback(host):
        raise BadInput(what=f"detent dev serves this machine only, not {host}; for a network use: detent serve")
    app = None if target is None else application(target, db)
    with watch.observed("detent-dev", log):
        asyncio.run(_both(app, host, port, db, as_json))


async def _both(app: Detent | None, host: str, port: int, db: str | None, as_json: bool) -> None:
    """The worker ends with the server."""
    from detent.api_key import Scope
    from detent.config import read
    from detent.dashboard.site import install
    from detent.http.app import create_app
    from detent.http.auth import Caller, one_token
    from detent.http.limits import Limits
    from detent.store import open_store
    from detent.store.records import DEFAULT_TENANT

    token = f"dk_dev_{secrets.token_urlsafe(32)}"
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


async def _finished(app: Detent, working: asyncio.Task[int]) -> None:
    app.stop()
    await working


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""`detent serve`: the HTTP API over a database, for the keys that are kept there."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from detent.cli import screen, watch
from detent.cli.database import Db, opened
from detent.errors import MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI

    from detent.http.server import Server

Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 for every network.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Where to listen; 0 for any that is free.")]

LOOPBACK = "127.0.0.1"


def serve(host: Host = LOOPBACK, port: Port = 8321, db: Db = None, as_json: screen.Json = False) -> None:
    """Serve the HTTP API until stopped. SIGTERM or Ctrl-C lets requests end and closes streams. Callers need a key."""
    from_extra()
    asyncio.run(_served(host, port, db, as_json))


async def _served(host: str, port: int, db: str | None, as_json: bool) -> None:
    from detent.http.app import create_app
    from detent.http.auth import kept_keys

    async with opened(db) as store:
        await run(create_app(store, kept_keys(store)), host, port, as_json)


def from_extra() -> None:
    """What a server needs is an extra; without it that is said in one line."""
    try:
        import fastapi  # noqa: F401 - only whether it is there
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as missing:
        raise MissingExtra(what="The HTTP server", extra="server") from missing


async def run(
    app: FastAPI, host: str, port: int, as_json: bool, token: str | None = None, beside: asyncio.Task[int] | None = None
) -> None:
    """Serves until a signal ends it, or what goes on beside it has ended; says where as soon as it listens. With no
    worker beside it, it looks itself after what concerns all."""
    from detent.http.server import listening_on, server
    from detent.worker.housekeeping import keeping_house

    with watch.logging_to_stderr(), listening_on(host, port) as listening:
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
    shown = f"{address}/?token={token}" if token else address
    facts = {"address": address} | ({"token": token} if token else {})
    screen.emit(facts, lambda: f"Serving {shown} (routes: /docs). SIGTERM or Ctrl-C ends it.", as_json)
    sys.stdout.flush()  # somebody may wait for it at the other end of a pipe

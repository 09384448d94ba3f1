"""`keptwork top`: show the state of a tenant on an updating screen, or once for logs and programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from keptwork.diagnostics import overview as service
from keptwork.errors import StoreError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from keptwork.diagnostics.overview import Overview
    from keptwork.store import Store

LEAVE = b"qQ"
"""Keys that end the command. Ctrl-C is a signal, and works even if the database does not respond."""

Every = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, max=3600, help="Time between updates.")]
Once = Annotated[bool, typer.Option("--once", help="Print one screen and exit. Default without a terminal.")]


def top(
    every: Every = 1.0,
    once: Once = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Show open problems, flows, jobs, queues, and workers, updated until you press q. This command only reads."""
    console = screen.stdout()
    if once or as_json or not console.is_terminal or console.is_dumb_terminal:
        found = asyncio.run(_look(db, tenant))
        screen.emit(service.as_json(found), lambda: _drawn(found, tenant), as_json)
    else:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the command too
            asyncio.run(_keep_up(db, tenant, every))


async def _look(db: str | None, tenant: str) -> Overview:
    async with opened(db) as store:
        return await service.read(store, await store.tenant(tenant))


def _drawn(found: Overview, tenant: str, height: int | None = None) -> RenderableType:
    from keptwork.cli.top_screen import drawn

    return drawn(found, tenant, screen.stdout().width, height)


# --- on a terminal


async def _keep_up(db: str | None, tenant: str, every: float) -> None:
    """Update the screen until the user leaves. An error before the first screen is raised, as in any command."""
    async with opened(db) as store:
        tenant_id = await store.tenant(tenant)
        found = await service.read(store, tenant_id)
        leaving = asyncio.Event()
        with _full_screen() as live, _keys(leaving), _signals(leaving):
            complaint = ""
            while True:
                live.update(_framed(found, tenant, complaint), refresh=True)
                if await _left(leaving, every):
                    return
                found, complaint = await _again(store, tenant_id, found)


async def _left(leaving: asyncio.Event, seconds: float) -> bool:
    """Return whether the user leaves within this time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(leaving.wait(), seconds)
    return leaving.is_set()


async def _again(store: Store, tenant_id: int, before: Overview) -> tuple[Overview, str]:
    """Read the current state. If the database is unreachable, return the previous state and the reason."""
    try:
        return await service.read(store, tenant_id), ""
    except StoreError as error:
        return before, f"What you see is old: {error}"


def _framed(found: Overview, tenant: str, complaint: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    height = screen.stdout().height - bool(complaint)
    picture = _drawn(found, tenant, height)
    return Group(Text(complaint, "bold red", no_wrap=True, overflow="ellipsis"), picture) if complaint else picture


@contextmanager
def _full_screen() -> Iterator[Live]:
    """Use the whole terminal, and restore its content afterwards."""
    from rich.live import Live

    with Live(console=screen.stdout(), screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        yield live


@contextmanager
def _keys(leaving: asyncio.Event) -> Iterator[None]:
    """Read typed keys without echo. If stdin is not a terminal, read nothing."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()

    def typed() -> None:
        signs = os.read(keyboard, 1024)
        if not signs or set(signs) & set(LEAVE):
            leaving.set()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, typed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextmanager
def _signals(leaving: asyncio.Event) -> Iterator[None]:
    """Leave on SIGTERM and SIGHUP, so that the terminal is restored."""
    loop, told = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGHUP)
    for number in told:
        loop.add_signal_handler(number, leaving.set)
    try:
        yield
    finally:
        for number in told:
            loop.remove_signal_handler(number)

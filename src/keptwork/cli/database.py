"""The database a command works on: the option that names it, and opening it without changing it."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from keptwork.store import Store

Db = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="The database; else KEPTWORK_DB, else sqlite:///keptwork.db."),
]
"""The option of every command that opens a database."""

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose.")]
"""The option of every command that works for one tenant."""

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job, by its public id.")]
"""The argument of every command that is about one job."""

DEFAULT_TENANT_NAME = "default"


def operator() -> str:
    """Who types this command, as the event log names them."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "cli"


@asynccontextmanager
async def opened(url: str | None, *, creates: bool = False) -> AsyncIterator[Store]:
    """Open a database, and refuse a missing or older one. With `creates` open it as a program does."""
    from keptwork.store import open_store

    store = await open_store(url, migrate=None if creates else False, create=creates)
    try:
        yield store
    finally:
        await store.close()


async def with_tenant(url: str | None, tenant: str, use: Any, *, creates: bool = False) -> Any:
    """What the use of an open database as this tenant comes to."""
    async with opened(url, creates=creates) as store:
        return await use(store, await store.tenant(tenant))

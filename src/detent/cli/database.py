"""The database a command works on: the option that names it, and opening it without changing it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from detent.store import Store

Db = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="The database; else DETENT_DB, else sqlite:///detent.db."),
]
"""The option of every command that opens a database."""


@asynccontextmanager
async def opened(url: str | None) -> AsyncIterator[Store]:
    """An open database. One that is missing or behind is refused, not made or migrated on the way."""
    from detent.store import open_store

    store = await open_store(url, migrate=False, create=False)
    try:
        yield store
    finally:
        await store.close()

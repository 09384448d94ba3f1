"""Migrate a database, or list what a migration would do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keptwork.store.migrations import Migration, Tell, log
from keptwork.store.upgrade import pending, restore_access, restore_guards, upgrade
from keptwork.store.url import database_url


class Migrated(NamedTuple):
    """The database, its applied or pending migrations, and the restored guards."""

    url: str
    migrations: list[Migration]
    guards: Sequence[str] = ()


async def migrate(url: str | None = None, *, guards: bool = False, tell: Tell = log.warning) -> Migrated:
    """Create the database if it does not exist, and apply every pending migration.

    With `guards`, also restore guards that were dropped, changed, or disabled, and on PostgreSQL the policies and
    grants of the current owner. `tell` receives a line for each session that is waited for, and one that names the
    point of an interruption.
    """
    target = database_url(url)
    access = await restore_access(target, tell) if guards else []
    applied = await upgrade(target, tell)
    restored = await restore_guards(target, tell) if guards else []
    return Migrated(target.shown, applied, [*restored, *(f"policies and grants of {name}" for name in access)])


async def dry_run(url: str | None = None) -> Migrated:
    """Return what `migrate` would apply. Nothing is changed or created."""
    target = database_url(url)
    return Migrated(target.shown, await pending(target))

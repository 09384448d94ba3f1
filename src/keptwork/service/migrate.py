"""Bringing a database up to date, or saying what that would do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keptwork.store.migrations import Migration
from keptwork.store.upgrade import pending, restore_guards, upgrade
from keptwork.store.url import database_url


class Migrated(NamedTuple):
    """Which database, and what was done to it, or is still to be done; and the guards that were put back."""

    url: str
    migrations: list[Migration]
    guards: Sequence[str] = ()


async def migrate(url: str | None = None, *, guards: bool = False) -> Migrated:
    """Makes the database if it is not there, and applies every migration it lacks. If asked to, guards that somebody
    has dropped, changed or switched off are put back."""
    target = database_url(url)
    applied = await upgrade(target)
    return Migrated(target.shown, applied, await restore_guards(target) if guards else ())


async def dry_run(url: str | None = None) -> Migrated:
    """What `migrate` would apply; nothing is changed and nothing is made."""
    target = database_url(url)
    return Migrated(target.shown, await pending(target))

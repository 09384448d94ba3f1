"""Bringing a database up to date, or saying what that would do."""

from __future__ import annotations

from typing import NamedTuple

from detent.store.migrations import Migration
from detent.store.upgrade import pending, upgrade
from detent.store.url import database_url


class Migrated(NamedTuple):
    """Which database, and what was done to it, or is still to be done."""

    url: str
    migrations: list[Migration]


async def migrate(url: str | None = None) -> Migrated:
    """Makes the database if it is not there, and applies every migration it lacks."""
    target = database_url(url)
    return Migrated(target.shown, await upgrade(target))


async def dry_run(url: str | None = None) -> Migrated:
    """What `migrate` would apply; nothing is changed and nothing is made."""
    target = database_url(url)
    return Migrated(target.shown, await pending(target))

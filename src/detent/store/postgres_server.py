"""A PostgreSQL server: reaching it, and saying plainly what is wrong when that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import asyncpg

from detent.errors import DiskFull, NoSuchDatabase, PostgresTooOld, StoreError, Unreachable, WrongPassword
from detent.store.url import DatabaseUrl

OLDEST_POSTGRES = 14
CONNECT_SECONDS = 10.0

# `detent.logs` tells the triggers that our statements write their events themselves; see postgres_guards.
SESSION_SETTINGS = {"detent.logs": "self", "application_name": "detent", "jit": "off", "timezone": "UTC"}


async def connect(url: DatabaseUrl) -> asyncpg.Connection:
    """A connection with the settings every one of ours has."""
    with explained(url):
        connection = await asyncpg.connect(url.text, timeout=CONNECT_SECONDS, server_settings=SESSION_SETTINGS)
    version = connection.get_server_version()
    if version.major < OLDEST_POSTGRES:
        await connection.close()
        raise PostgresTooOld(url=url.shown, found=version.major, needed=OLDEST_POSTGRES)
    return connection


@contextmanager
def explained(url: DatabaseUrl) -> Iterator[None]:
    """Turns what the driver says into what to do about it."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise explanation(error, url) from error


def explanation(error: BaseException, url: DatabaseUrl) -> StoreError:
    """The error of ours that tells a user what the driver's means."""
    detail = " ".join(str(error).split()) or type(error).__name__
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return WrongPassword(url=url.shown, detail=detail)
        case asyncpg.InvalidCatalogNameError():
            return NoSuchDatabase(url=url.shown, database=urlsplit(url.text).path.lstrip("/") or "NAME")
        case asyncpg.DiskFullError():
            return DiskFull(path=url.shown)
        case TimeoutError():
            return Unreachable(url=url.shown, detail=f"no answer within {CONNECT_SECONDS:.0f} s")
        case OSError() | asyncpg.CannotConnectNowError() | asyncpg.ConnectionDoesNotExistError():
            return Unreachable(url=url.shown, detail=detail)
        case asyncpg.AdminShutdownError() | asyncpg.CrashShutdownError() | asyncpg.TooManyConnectionsError():
            return Unreachable(url=url.shown, detail=detail)
    return StoreError(url=url.shown, detail=detail)

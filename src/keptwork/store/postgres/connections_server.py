"""Connects to a PostgreSQL server, and explains the driver's errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import asyncpg

from keptwork.errors import (
    BadInput,
    DiskFull,
    NoSuchDatabase,
    NotPermitted,
    PostgresTooOld,
    SchemaDamaged,
    StoreError,
    Unconfirmed,
    Unreachable,
    WrongPassword,
)
from keptwork.store.url import DatabaseUrl

OLDEST_POSTGRES = 14
CONNECT_TIMEOUT = "KEPTWORK_CONNECT_TIMEOUT"
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60

# `keptwork.logs` tells the triggers that our statements write their events themselves; see postgres_guards. The other
# settings keep plans right. Every statement uses a key, and a plan that was cached while the tables were empty must not
# scan a full table later. Each plan is made once. By default, the server would plan a claim again each time, which
# takes longer than the claim.
SESSION_SETTINGS = {
    "keptwork.logs": "self",
    "application_name": "keptwork",
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",  # a frozen client must not hold its locks forever
    "client_min_messages": "warning",  # a warning tells that a standby was not waited for
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class WaitCancelled(Exception):
    """The wait for a synchronous standby was cancelled on the server."""


# The server's warning about a commit that no longer waits for a standby, because a user cancelled the wait or the
# session ends. The text of the warning is in the server's language.
CANCELLED_WAIT, CANCELLED_IN = frozenset({"01000", "57P01"}), "SyncRepWaitForLSN"


def is_cancelled_wait(fields: Mapping[str, str]) -> bool:
    """Return whether a message of the server means that it gave up waiting for a standby."""
    return fields.get("R") == CANCELLED_IN and fields.get("C") in CANCELLED_WAIT


# The driver raises its internal error if a server dies at a bad moment, such as "another operation is in progress".
FROM_POSTGRES = (
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError),
    WaitCancelled,
)


BROKEN = (
    *(asyncpg.ConnectionDoesNotExistError, asyncpg.InternalClientError, ConnectionResetError, BrokenPipeError),
    WaitCancelled,
)


# The server rolls back one of several transactions that deadlock or cannot be serialized.
AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


def connect_seconds() -> float:
    """Return how long to wait for a server: KEPTWORK_CONNECT_TIMEOUT. Default: 10 s."""
    given = os.environ.get(CONNECT_TIMEOUT, "").strip()
    try:
        seconds = float(given or CONNECT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadInput(what=f"{CONNECT_TIMEOUT}={given} is no time to wait; give seconds, such as {CONNECT_TIMEOUT}=5")
    return seconds


def wanted(url: DatabaseUrl) -> str | None:
    """Return which of several servers to use. Default: the one that accepts writes. The URL or the environment can set
    another."""
    said = "target_session_attrs" in url.text or "PGTARGETSESSIONATTRS" in os.environ
    return None if said or url.servers == 1 else "read-write"


async def connect(url: DatabaseUrl) -> asyncpg.Connection:
    """Return a connection with Keptwork's settings."""
    with explained(url):
        connection = await asyncpg.connect(
            url.text, timeout=connect_seconds(), server_settings=SESSION_SETTINGS, target_session_attrs=wanted(url)
        )
    version = connection.get_server_version()
    if version.major < OLDEST_POSTGRES:
        await connection.close()
        raise PostgresTooOld(url=url.shown, found=version.major, needed=OLDEST_POSTGRES)
    return connection


@contextmanager
def explained(url: DatabaseUrl) -> Iterator[None]:
    """Translate the driver's errors into Keptwork's."""
    try:
        yield
    except asyncpg.LockNotAvailableError:
        raise  # an expected error of a statement that does not wait for locks, handled by its caller
    except FROM_POSTGRES as error:
        raise explanation(error, url) from error


def lost_answer(error: StoreError) -> bool:
    """Return whether a call's outcome is unknown. Its connection broke, or its commit was not confirmed."""
    return isinstance(error.__cause__, BROKEN)


def asks_again(error: StoreError) -> bool:
    """Return whether a transaction can be retried from the start, since only other ones made the server roll it
    back."""
    return isinstance(error.__cause__, AGAIN)


def explanation(error: BaseException, url: DatabaseUrl) -> StoreError:
    """Return Keptwork's error for an error of the driver."""
    detail = " ".join(str(error).split()) or type(error).__name__
    match error:
        case WaitCancelled():
            return Unconfirmed(url=url.shown)
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return WrongPassword(url=url.shown, detail=detail)
        case asyncpg.InvalidCatalogNameError():
            return NoSuchDatabase(url=url.shown, database=urlsplit(url.text).path.lstrip("/") or "NAME")
        case asyncpg.InsufficientPrivilegeError():
            return NotPermitted(url=url.shown, detail=detail)
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.UndefinedFunctionError():
            return SchemaDamaged(url=url.shown, detail=detail)
        case asyncpg.DiskFullError():
            return DiskFull(path=url.shown)
        case TimeoutError():
            return Unreachable(url=url.shown, detail=f"no answer within {connect_seconds():g} s")
        case asyncpg.TargetServerAttributeNotMatched() | asyncpg.ReadOnlySQLTransactionError():
            return Unreachable(url=url.shown, detail="no server there takes writes; is it a standby?")
        case asyncpg.InternalClientError():
            return Unreachable(url=url.shown, detail="the connection broke in the middle of a call")
        case OSError() | asyncpg.CannotConnectNowError() | asyncpg.ConnectionDoesNotExistError():
            return Unreachable(url=url.shown, detail=detail)
        case asyncpg.AdminShutdownError() | asyncpg.CrashShutdownError() | asyncpg.TooManyConnectionsError():
            return Unreachable(url=url.shown, detail=detail)
    return StoreError(url=url.shown, detail=detail)

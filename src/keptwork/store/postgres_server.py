"""A PostgreSQL server: reaching it, and saying plainly what is wrong when that fails."""

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

# `keptwork.logs` tells the triggers that our statements write their events themselves; see postgres_guards.
# The rest keeps plans honest: every statement of ours goes by key, and a plan that was made and kept while the tables
# were empty must not read all of a table once it is full. It is made once: left to itself, the server plans a claim
# anew each time, which takes longer than the claim.
SESSION_SETTINGS = {
    "keptwork.logs": "self",
    "application_name": "keptwork",
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",  # a client that froze must not hold its locks for ever
    "client_min_messages": "warning",  # that a standby was not waited for is told in a warning
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class WaitCancelled(Exception):
    """the wait for a synchronous standby was cancelled on the server"""


# How the server warns of a commit that it no longer holds back for a standby: because a user cancelled the wait, or
# because the session ends. The text of the warning is in the server's language.
CANCELLED_WAIT, CANCELLED_IN = frozenset({"01000", "57P01"}), "SyncRepWaitForLSN"


def is_cancelled_wait(fields: Mapping[str, str]) -> bool:
    """Return whether a message of the server says that it gave up waiting for a standby."""
    return fields.get("R") == CANCELLED_IN and fields.get("C") in CANCELLED_WAIT


# The driver's internal error is what it says when a server dies at a bad moment: "another operation is in progress".
FROM_POSTGRES = (
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError),
    WaitCancelled,
)


BROKEN = (
    *(asyncpg.ConnectionDoesNotExistError, asyncpg.InternalClientError, ConnectionResetError, BrokenPipeError),
    WaitCancelled,
)


# Of transactions that wait for each other, or cannot have come one after the other, the server undoes one.
AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


def connect_seconds() -> float:
    """How long to wait for a server that does not answer: KEPTWORK_CONNECT_TIMEOUT, else ten seconds."""
    given = os.environ.get(CONNECT_TIMEOUT, "").strip()
    try:
        seconds = float(given or CONNECT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadInput(what=f"{CONNECT_TIMEOUT}={given} is no time to wait; give seconds, such as {CONNECT_TIMEOUT}=5")
    return seconds


def wanted(url: DatabaseUrl) -> str | None:
    """Which of several servers to take: the one that accepts writes, unless somebody says otherwise."""
    said = "target_session_attrs" in url.text or "PGTARGETSESSIONATTRS" in os.environ
    return None if said or url.servers == 1 else "read-write"


async def connect(url: DatabaseUrl) -> asyncpg.Connection:
    """A connection with the settings every one of ours has."""
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
    """Turns what the driver says into what to do about it."""
    try:
        yield
    except asyncpg.LockNotAvailableError:
        raise  # the answer of a statement that asked not to wait; it knows what that means
    except FROM_POSTGRES as error:
        raise explanation(error, url) from error


def lost_answer(error: StoreError) -> bool:
    """Whether nobody knows what became of a call: its connection broke, or its commit was not confirmed."""
    return isinstance(error.__cause__, BROKEN)


def asks_again(error: StoreError) -> bool:
    """Whether the server undid a transaction only because of others, so that it may be made again from the start."""
    return isinstance(error.__cause__, AGAIN)


def explanation(error: BaseException, url: DatabaseUrl) -> StoreError:
    """The error of ours that tells a user what the driver's means."""
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

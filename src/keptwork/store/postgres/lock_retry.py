"""Changes the tables of a PostgreSQL database in use, with short and repeated waits for locks.

A statement that waits for an exclusive lock on a table blocks every later statement on that table. `patiently` runs a
transaction whose waits together end after a fraction of a second. If that was too short, it rolls back, names the
session it waited for, and retries after a pause in which all other sessions work.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from keptwork.store.migrations import Tell, log

T = TypeVar("T")
Bounded = Callable[[str], str]

# The server looks for deadlocks after 1 s. A shorter wait does not make another session a deadlock victim.
LOCK_SECONDS, SHORTEST_LOCK_SECONDS = 0.4, 0.02
VACUUM_SECONDS = 3.0
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
TURN_SECONDS, TOLD_AFTER_SECONDS = 0.05, 1.0

_TABLES = """SELECT string_agg(oid::regclass::text, ', ' ORDER BY relname) FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND pg_has_role(relowner, 'USAGE')
    AND EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid AND polname = 'engine')"""

# A role without rights on other roles' sessions sees neither the start nor the state of their work.
_SESSION = """SELECT a.pid, a.usename, a.application_name, a.state, a.backend_type,
    extract(epoch FROM clock_timestamp() - a.xact_start)::int AS seconds, {what} AS holds
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid {joined}
WHERE l.granted AND l.pid <> pg_backend_pid() AND {which}
GROUP BY a.pid, a.usename, a.application_name, a.state, a.backend_type, a.xact_start
ORDER BY a.xact_start NULLS LAST LIMIT 1"""

_HOLDER = _SESSION.format(
    what="'table ' || min(c.relname)",
    joined="JOIN pg_class AS c ON c.oid = l.relation AND c.relkind = 'r'",
    which="c.relnamespace = current_schema()::regnamespace "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
)

_MIGRATOR = _SESSION.format(
    what="'the lock of keptwork migrate'",
    joined="",
    which="l.locktype = 'advisory' AND (l.classid::bigint << 32) | l.objid::bigint = $1 "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
)


async def patiently(
    connection: asyncpg.Connection, work: Callable[[Bounded], Awaitable[T]], tell: Tell = log.warning
) -> T:
    """Run `work` in a transaction, retried until it gets its locks, and return its result.

    `work` passes every statement that might wait for a lock through the function that it is given.
    """
    told = _Told(connection, tell)
    pause = FIRST_PAUSE
    while True:
        try:
            async with connection.transaction():
                await _keep_vacuum_away(connection)
                return await work(_Waits().bounded)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await told.holder(_HOLDER)
        await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
        pause = min(pause * 2, LONGEST_PAUSE)


async def take_turn(connection: asyncpg.Connection, key: int, tell: Tell = log.warning) -> None:
    """Take an advisory lock of the session. After 1 s, name the session that holds it."""
    told, told_from = _Told(connection, tell), time.monotonic() + TOLD_AFTER_SECONDS
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", key):
        await asyncio.sleep(TURN_SECONDS)
        if time.monotonic() > told_from:
            await told.holder(_MIGRATOR, key)


class _Waits:
    """The time that the statements of one attempt can wait for locks, in total."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + LOCK_SECONDS

    def bounded(self, statement: str) -> str:
        left = max(self._ends - time.monotonic(), SHORTEST_LOCK_SECONDS)
        return f"SET LOCAL lock_timeout = {left * 1000:.0f}; {statement}"


class _Told:
    """Reports each session that is waited for once."""

    def __init__(self, connection: asyncpg.Connection, tell: Tell) -> None:
        self._connection = connection
        self._tell = tell
        self._named: set[int] = set()

    async def holder(self, query: str, *values: int) -> None:
        found = await self._connection.fetchrow(query, *values)
        if found is not None and found["pid"] not in self._named:
            self._named.add(found["pid"])
            self._tell(_said(found))


async def _keep_vacuum_away(connection: asyncpg.Connection) -> None:
    """Take a lock that conflicts only with VACUUM and similar commands.

    The server ends an automatic VACUUM for a session that has waited for 1 s. No other session queues behind this wait.
    """
    tables = await connection.fetchval(_TABLES)
    if tables is not None:
        wait = f"SET LOCAL lock_timeout = {VACUUM_SECONDS * 1000:.0f}"
        await connection.execute(f"{wait}; LOCK TABLE {tables} IN SHARE UPDATE EXCLUSIVE MODE")


def _said(session: asyncpg.Record) -> str:
    who = [session["usename"] and f"user {session['usename']}", session["application_name"] or session["backend_type"]]
    since = "" if session["seconds"] is None else f" for {session['seconds']} s"
    who += [f"{session['state']}{since}" if session["state"] else None]
    return (
        f"waiting for session {session['pid']} ({', '.join(filter(None, who))}), which holds {session['holds']}; "
        f"to end it, run: SELECT pg_terminate_backend({session['pid']})"
    )

"""A second count of what jobs do, kept by the test itself: triggers of its own that write to a table of its own.

It knows nothing of the event log. It sees rows change, from whatever process, in the transaction that changes them.
Beside it stands what else a test types into the database by hand.
"""

from __future__ import annotations

import fcntl
import time
from contextlib import closing
from urllib.parse import urlsplit

import apsw
import asyncpg

# One write may take a job over two moves: a claim that starts it at once passes through `assigned`. One that is started
# as it is enqueued may be born running.
_BORN = "CASE NEW.state WHEN 'running' THEN 3 ELSE 1 END"
_STEPS = "CASE WHEN OLD.state = 'queued' AND NEW.state = 'running' THEN 2 ELSE 1 END"
_TABLE = "CREATE TABLE observed (job bigint NOT NULL, moves int NOT NULL)"
_BIRTH = f"INSERT INTO observed VALUES (NEW.id, {_BORN})"
_CHANGE = f"INSERT INTO observed VALUES (NEW.id, {_STEPS})"
_MOVED = "OLD.state <> NEW.state OR OLD.epoch <> NEW.epoch"
_COUNT = "SELECT coalesce(sum(moves), 0) FROM observed"
_WAITING = "SELECT count(*) FROM jobs WHERE state = 'queued'"

_SQLITE = f"""
{_TABLE};
CREATE TRIGGER observe_birth AFTER INSERT ON jobs BEGIN {_BIRTH}; END;
CREATE TRIGGER observe_change AFTER UPDATE ON jobs WHEN {_MOVED} BEGIN {_CHANGE}; END;
"""
_POSTGRES = f"""
{_TABLE};
CREATE FUNCTION observe_birth() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {_BIRTH}; RETURN NULL; END $$;
CREATE FUNCTION observe_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {_CHANGE}; RETURN NULL; END $$;
CREATE TRIGGER observe_birth AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION observe_birth();
CREATE TRIGGER observe_change AFTER UPDATE ON jobs FOR EACH ROW WHEN ({_MOVED}) EXECUTE FUNCTION observe_change();
"""


async def observe(url: str) -> None:
    """From now on every move of a job is counted."""
    await type_in(url, _SQLITE if _is_sqlite(url) else _POSTGRES)


async def observed(url: str) -> int:
    """How many moves jobs have made."""
    return await _ask(url, _COUNT)


async def waiting(url: str) -> int:
    """How many jobs wait in the queue."""
    return await _ask(url, _WAITING)


def write_locked(url: str) -> bool:
    """Whether somebody is in the middle of a write to a SQLite file; stopped there, it stops all other writers."""
    if not _is_sqlite(url):
        return False
    with closing(_file(url)) as db:
        db.set_busy_timeout(1000)
        try:
            db.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return True
    return _turn_is_kept(f"{url.removeprefix('sqlite:///')}-turn")


def _turn_is_kept(path: str) -> bool:
    """Whether a process keeps the turn to write for a whole second, be it before or after its write."""
    with open(path, "rb") as turn:
        for _ in range(100):
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            else:
                return False
    return True


async def drop_guard(url: str) -> None:
    """With its guard the database refuses most of it by itself; a twin must show what the fence is for."""
    await type_in(url, f"DROP TRIGGER keptwork_job_moves {'' if _is_sqlite(url) else 'ON jobs'}")


async def drop_claim_guards(url: str) -> None:
    """The database itself refuses a second claim: by its guard, and PostgreSQL by the unique key of the log as well,
    since both claimers saw the same seq."""
    await drop_guard(url)
    if not _is_sqlite(url):
        await type_in(url, "DROP INDEX events_of_entity")


async def drop_breaker_guards(url: str) -> None:
    """The database itself refuses a second probe, for the same reasons."""
    await type_in(url, f"DROP TRIGGER keptwork_breaker_moves {'' if _is_sqlite(url) else 'ON breakers'}")
    if not _is_sqlite(url):
        await type_in(url, "DROP INDEX events_of_entity")


def _is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


async def type_in(url: str, sql: str) -> None:
    """As an operator would, into sqlite3 or psql."""
    if _is_sqlite(url):
        with closing(_file(url)) as db:
            db.execute(sql)
        return
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()


async def _ask(url: str, sql: str) -> int:
    if _is_sqlite(url):
        with closing(_file(url)) as db:
            return int(str(db.execute(sql).get))
    connection = await asyncpg.connect(url)
    answer = await connection.fetchval(sql)
    await connection.close()
    return int(answer)


def _file(url: str) -> apsw.Connection:
    db = apsw.Connection(urlsplit(url).path)
    db.set_busy_timeout(30_000)
    return db

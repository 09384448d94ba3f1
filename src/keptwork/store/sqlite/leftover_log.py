"""Checks a log left by a crash, or by a file copied over the old one, before SQLite uses it.

SQLite replays a log into whatever file has its name, even into a backup that was copied there, and deletes the log
afterward. So the first process to open a file reads it through its log and checks the whole, in a mode that writes to
neither file, log, nor index. If file and log do not match, all three stay unchanged.
"""

from __future__ import annotations

import logging
import os

import apsw

from keptwork.errors import NewerDatabase, NotOurDatabase, OrphanedLog, StaleLog
from keptwork.store.migrations import newest
from keptwork.store.sqlite.file_migrate import applied

APPLICATION_ID = 0x4B455054  # "KEPT"

logger = logging.getLogger("keptwork")


def has_log(real: str) -> bool:
    """Return whether there is a log that is not empty. SQLite names the log after the file, not after a link to it."""
    try:
        return os.stat(f"{real}-wal").st_size > 0
    except OSError:
        return False


def judge(path: str) -> None:
    """Reject a file that its leftover log would damage. A log that is in use was checked when its user opened the
    file."""
    if not os.path.exists(path) or not os.path.getsize(path):
        raise OrphanedLog(path=path)
    if not os.access(path, os.W_OK):
        return  # nothing can be replayed into it
    db = untouching(path)
    try:
        _judge(db, path)
    except apsw.BusyError:
        return
    except (apsw.CorruptError, UnicodeDecodeError) as error:
        raise _stale(path, str(error)) from error
    finally:
        db.close()


def untouching(path: str) -> apsw.Connection:
    """Return a connection that locks the file and writes to neither the file nor its log, even on close. The lock is
    exclusive. If another connection is open, the first read raises `apsw.BusyError`."""
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.pragma("locking_mode", "exclusive")  # the index of the log is then in memory
    db.pragma("wal_autocheckpoint", 0)
    db.pragma("query_only", True)
    return db


def _judge(db: apsw.Connection, path: str) -> None:
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if tables and db.pragma("application_id") != APPLICATION_ID:
        raise NotOurDatabase(path=path)
    if (found := applied(db)) > newest():
        raise NewerDatabase(url=f"sqlite:///{path}", found=found, needed=newest())
    logger.info("checking %s and the log that a crash left", path)
    db.pragma("cell_size_check", True)
    for (fault,) in db.execute("PRAGMA integrity_check(1)").fetchall():
        if fault != "ok":
            raise _stale(path, str(fault).removeprefix("*** in database main ***"))


def _stale(path: str, detail: str) -> StaleLog:
    return StaleLog(path=path, detail=" ".join(detail.split()))

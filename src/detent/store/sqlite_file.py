"""A SQLite file: opening it, checking that it is ours and sound, and saying plainly what is wrong with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from detent.errors import (
    Busy,
    Damaged,
    DiskFull,
    NotADatabase,
    NotOurDatabase,
    NotWritable,
    SqliteTooOld,
    StorageFailed,
    StoreError,
)

OLDEST_SQLITE = (3, 51, 3)
APPLICATION_ID = 0x0DE7E17
BUSY_SECONDS = 60
MEMORY = ":memory:"


def connect(path: str, *, read_only: bool = False) -> apsw.Connection:
    """A connection with the settings every one of ours has."""
    require_version(apsw.sqlite_lib_version())
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with explained(path):
        db = apsw.Connection(path, flags=flags | apsw.SQLITE_OPEN_NOMUTEX, statementcachesize=200)
        db.set_busy_timeout(BUSY_SECONDS * 1000)
        _prepare(db, path, read_only)
    return db


def require_version(found: str) -> None:
    """Refuse a SQLite that may damage a file several processes write to."""
    if tuple(int(part) for part in found.split(".")) < OLDEST_SQLITE:
        raise SqliteTooOld(found=found, needed=".".join(map(str, OLDEST_SQLITE)))


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns what SQLite says into what to do about it."""
    try:
        yield
    except apsw.Error as error:
        raise explanation(error, path) from error


def explanation(error: apsw.Error, path: str) -> StoreError:
    """The error of ours that tells a user what SQLite's means."""
    detail = str(error) or type(error).__name__
    match error:
        case apsw.NotADBError():
            return NotADatabase(path=path)
        case apsw.CorruptError():
            return Damaged(path=path, detail=detail)
        case apsw.FullError():
            return DiskFull(path=path)
        case apsw.IOError() if _is_disk_full(path):
            return DiskFull(path=path)
        case apsw.IOError():
            return StorageFailed(path=path, detail=detail)
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return NotWritable(path=path, detail=_why_not_writable(path) or detail)
        case apsw.BusyError() | apsw.LockedError():
            return Busy(url=path, seconds=BUSY_SECONDS)
    return StoreError(url=path, detail=detail)


def _prepare(db: apsw.Connection, path: str, read_only: bool) -> None:
    application = db.pragma("application_id")
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if application != APPLICATION_ID and tables:
        raise NotOurDatabase(path=path)
    if not read_only:
        if not tables:
            db.pragma("application_id", APPLICATION_ID)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
    db.pragma("cell_size_check", True)
    db.pragma("cache_size", -8192)
    db.pragma("journal_size_limit", 64 << 20)


def _is_disk_full(path: str) -> bool:
    """An I/O error on a disk without a free block is a full disk under another name."""
    try:
        free = os.statvfs(Path(path).parent)
    except OSError as error:
        return error.errno == errno.ENOSPC
    return free.f_bavail == 0


def _why_not_writable(path: str) -> str:
    folder = Path(path).parent
    if not folder.exists():
        return f"the folder {folder} does not exist"
    if Path(path).is_dir():
        return "it is a folder"
    if not os.access(folder, os.W_OK):
        return f"the folder {folder} is not writable"
    return "it is not writable" if Path(path).exists() and not os.access(path, os.W_OK) else ""

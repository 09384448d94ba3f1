"""Opens a SQLite file, checks that it is a sound Keptwork database, and explains SQLite's errors."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG

import apsw

from keptwork.errors import (
    Busy,
    Damaged,
    DiskFull,
    NoDatabase,
    NotADatabase,
    NotOurDatabase,
    NotWritable,
    SchemaDamaged,
    SqliteTooOld,
    StorageFailed,
    StoreError,
)
from keptwork.store.migrations import newest
from keptwork.store.sqlite import open_files
from keptwork.store.sqlite.file_location import inspect
from keptwork.store.sqlite.file_migrate import applied
from keptwork.store.sqlite.leftover_log import APPLICATION_ID, has_log, judge
from keptwork.store.sqlite.open_lock import ALONE, SHARED, entrance

OLDEST_SQLITE = (3, 51, 3)
BUSY_SECONDS = 60
MEMORY = ":memory:"
LACKS = ("no such table", "no such column")  # SQLite has no separate error code for these

# The errors that reading or writing a file can raise. Text is decoded when it is read, which fails if it is damaged.
FROM_SQLITE = (apsw.Error, UnicodeDecodeError)


def connect(
    path: str, *, read_only: bool = False, create: bool = True, synchronous: str = "full", shared: bool = False
) -> apsw.Connection:
    """Return a connection with Keptwork's settings. Without `create`, the file must exist. The first connection in a
    process checks the file's names, its file system, and a leftover log. `shared` accepts a network file system."""
    require_version(apsw.sqlite_lib_version())
    if path == MEMORY or open_files.holds(path):
        return _connected(path, read_only, synchronous)
    real = os.path.realpath(path)
    leftover = has_log(real)
    if not create and not leftover and is_missing(path):
        raise NoDatabase(url=f"sqlite:///{path}")
    with explained(path), entrance(real, ALONE if leftover else SHARED, BUSY_SECONDS):
        inspect(path, real, shared=shared)
        if leftover:
            judge(real)
        return _connected(path, read_only, synchronous)


def _connected(path: str, read_only: bool, synchronous: str) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with explained(path):
        db = open_files.Connection(path, flags=flags | apsw.SQLITE_OPEN_NOMUTEX, statementcachesize=200)
        try:
            if path != MEMORY:
                open_files.hold(path, db)
            db.set_busy_timeout(BUSY_SECONDS * 1000)
            _prepare(db, path, read_only)
            if not read_only:
                db.pragma("synchronous", synchronous)
        except BaseException:
            db.close()
            raise
    return db


def is_missing(path: str) -> bool:
    """Return whether the file is missing or empty."""
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return path != MEMORY
    except OSError:
        return False  # opening it reports the error
    return S_ISREG(found.st_mode) and found.st_size == 0


def require_version(found: str) -> None:
    """Reject a SQLite version that can damage a file when several processes write to it."""
    if tuple(int(part) for part in found.split(".")) < OLDEST_SQLITE:
        raise SqliteTooOld(found=found, needed=".".join(map(str, OLDEST_SQLITE)))


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Translate SQLite's errors into Keptwork's."""
    try:
        yield
    except FROM_SQLITE as error:
        raise explanation(error, path) from error


def explanation(error: Exception, path: str) -> StoreError:
    """Return Keptwork's error for an error of SQLite."""
    detail = str(error) or type(error).__name__
    match error:
        case apsw.NotADBError():
            return NotADatabase(path=path)
        case UnicodeDecodeError():
            return Damaged(path=path, detail="it holds text that is no text")
        case apsw.CorruptError():
            return Damaged(path=path, detail=detail)
        case apsw.FullError():
            return DiskFull(path=path)
        case apsw.IOError() if _is_disk_full(path):
            return DiskFull(path=path)
        case apsw.IOError():
            return StorageFailed(path=path, detail=detail)
        case apsw.CantOpenError() if no_descriptor_left():
            return StoreError(url=path, detail="this process has no file descriptor left")
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return NotWritable(path=path, detail=_why_not_writable(path) or detail)
        case apsw.BusyError() | apsw.LockedError():
            return Busy(url=path, seconds=BUSY_SECONDS)
        case apsw.SQLError() if detail.startswith(LACKS):
            return SchemaDamaged(url=path, detail=detail)
    return StoreError(url=path, detail=detail)


def no_descriptor_left() -> bool:
    """Return whether this process, or the system, can open no more files."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _prepare(db: apsw.Connection, path: str, read_only: bool) -> None:
    application, tables = _contents(db)
    if application != APPLICATION_ID and tables:
        raise NotOurDatabase(path=path)
    if not read_only and applied(db) <= newest():  # a newer program's file must be rejected unchanged
        if not tables:
            db.pragma("application_id", APPLICATION_ID)
        _enter_wal(db)
    db.pragma("cell_size_check", True)
    db.pragma("cache_size", -4096)  # KB; doubling it did not help with a million finished jobs
    db.pragma("journal_size_limit", 64 << 20)


def _contents(db: apsw.Connection) -> tuple[object, object]:
    """Return the application ID and the number of tables as of one moment. Another process might be preparing the
    file."""
    db.execute("BEGIN")
    try:
        return db.pragma("application_id"), db.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    finally:
        if db.in_transaction:  # a disk error has already ended it, and is the error to report
            db.execute("ROLLBACK")


def _enter_wal(db: apsw.Connection) -> None:
    """Switch to WAL mode. SQLite does not wait for locks when it changes the journal mode, so this retries."""
    deadline = time.monotonic() + BUSY_SECONDS
    while db.pragma("journal_mode") not in ("wal", "memory"):
        try:
            if db.pragma("journal_mode", "wal") != "wal":
                return  # a file system without shared memory: slower, but as safe
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _is_disk_full(path: str) -> bool:
    """Return whether the disk has no free block. SQLite then reports an I/O error."""
    try:
        free = os.statvfs(Path(path).parent)
    except OSError as error:
        return error.errno == errno.ENOSPC
    return free.f_bavail == 0


def _why_not_writable(path: str) -> str:
    """Return the reason as text, or an empty string. `os.path` is used because a `Path` raises in directories that may
    not be entered."""
    folder = os.path.dirname(path) or "."
    if not os.access(folder, os.F_OK):
        return f"the folder {folder} does not exist"
    if os.path.isdir(path):
        return "it is a folder"
    if not os.path.isdir(folder):
        return f"{folder} is not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} is not writable"
    return "it is not writable" if os.path.exists(path) and not os.access(path, os.W_OK) else ""

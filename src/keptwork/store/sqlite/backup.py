"""Backs up a SQLite file while it is in use, and restores a backup.

A copy gets its name only when it is complete and checked. A restore renames the replaced file together with its log, so
that it can still be opened under the new name. At each moment in between, either the file is whole or Keptwork rejects
it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import apsw

from keptwork.errors import BadBackup, BadInput, CannotWriteFile, InUse, NewerDatabase, NotBackedUp, NotWritable
from keptwork.store.backup import Backup, Restored, differences
from keptwork.store.migrations import newest
from keptwork.store.sqlite import open_files
from keptwork.store.sqlite.file import BUSY_SECONDS, FROM_SQLITE, MEMORY, connect, explained
from keptwork.store.sqlite.file_location import refuse_mount
from keptwork.store.sqlite.file_migrate import applied
from keptwork.store.sqlite.leftover_log import APPLICATION_ID, untouching
from keptwork.store.sqlite.open_lock import ALONE, entrance
from keptwork.store.url import DatabaseUrl

COMPANIONS = ("-wal", "-shm", "-journal")
LOCKED_BY_SQLITE = (512, 0x40000000)  # the number of bytes that SQLite locks in a file, and the first of them


def back_up(url: DatabaseUrl, file: Path) -> Backup:
    """Copy the database as of one moment into a new file, while writers continue."""
    _refuse_memory(url)
    for taken in (file, *(Path(f"{file}{part}") for part in COMPANIONS)):
        if os.path.lexists(taken):
            raise CannotWriteFile(path=file, detail=f"{taken} exists")
    with closing(connect(url.path, create=False, shared=url.shared)) as db, explained(url.path):
        try:
            with _partial(file) as copy:
                rows, wrong = _copied(db, copy)
                if wrong:
                    raise NotBackedUp(url=url.shown, detail=wrong)
                os.chmod(copy, os.stat(url.path).st_mode & 0o7777)  # readable by no more users than the database
                os.rename(copy, file)
                _sync_folder(file)
        except OSError as error:
            raise CannotWriteFile(path=file, detail=error.strerror) from error
    return Backup(rows)


def restore(url: DatabaseUrl, file: Path) -> Restored:
    """Replace the database with a checked copy of the backup. No process may have the database open."""
    _refuse_memory(url)
    path = os.path.realpath(url.path)
    if open_files.holds(path):
        raise InUse(path=url.path)
    if os.path.exists(path) and os.path.samefile(path, file):
        raise BadBackup(file=file, detail="it is the database itself")
    refuse_mount(url.path, path, shared=url.shared)
    try:
        with explained(path), _partial(Path(path)) as copy:
            rows = _checked(file, copy)
            with entrance(path, ALONE, BUSY_SECONDS):
                return Restored(rows, _exchanged(copy, path))
    except OSError as error:
        raise NotWritable(path=path, detail=error.strerror) from error


def counts(db: apsw.Connection) -> dict[str, int]:
    """Count the rows of each table, including tables of the user."""
    names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'sqlite_*'").fetchall()
    return {str(name): _count(db, str(name)) for (name,) in names}


def _count(db: apsw.Connection, table: str) -> int:
    quoted = table.replace('"', '""')
    (row,) = db.execute(f'SELECT count(*) FROM "{quoted}"').fetchall()  # noqa: S608 - a name, quoted
    return int(str(row[0]))


def _refuse_memory(url: DatabaseUrl) -> None:
    if url.path == MEMORY:
        raise BadInput(what="a database in memory has no backup; name a file with --db")


@contextmanager
def _partial(file: Path) -> Iterator[str]:
    """Yield a temporary name next to the file for an incomplete copy. Files that still have that name at the end are
    deleted."""
    partial = f"{file.parent}/.{file.name}.{os.getpid()}.partial"
    try:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        yield partial
    finally:
        for part in ("", *COMPANIONS):
            with suppress(OSError):
                os.unlink(f"{partial}{part}")


def _copied(db: apsw.Connection, copy: str) -> tuple[dict[str, int], str]:
    """Copy the database of a connection as of one moment, and compare. Return the row counts, and what is wrong or an
    empty string."""
    db.execute("BEGIN")
    rows = counts(db)
    with closing(_made(copy)) as into:
        with into.backup("main", db, "main") as backup:
            backup.step(-1)
        into.pragma("journal_mode", "delete")  # a single file that needs no log
        faults = [str(fault) for (fault,) in into.execute("PRAGMA integrity_check(1)").fetchall() if fault != "ok"]
        wrong = faults[0] if faults else differences(rows, counts(into))
    _sync(copy)
    return rows, " ".join(wrong.removeprefix("*** in database main ***").split())


def _made(copy: str) -> apsw.Connection:
    try:
        db = apsw.Connection(copy, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    except apsw.CantOpenError as error:
        folder = os.path.dirname(copy)
        why = "is not writable" if os.path.isdir(folder) else "does not exist"
        raise NotWritable(path=copy, detail=f"the folder {folder} {why}") from error
    db.pragma("synchronous", "off")  # it is synced once, when complete
    return db


def _checked(file: Path, copy: str) -> dict[str, int]:
    """Copy a backup, or reject a file that is not one. The backup itself stays unchanged."""
    if not file.is_file():
        raise BadBackup(file=file, detail="there is no such file")
    try:
        with closing(_backup_file(file)) as db:
            _refuse_foreign(db, file)
            rows, wrong = _copied(db, copy)
    except apsw.BusyError:
        raise InUse(path=file) from None
    except (apsw.FullError, apsw.IOError):
        raise  # an error of the disk, more likely than of the backup
    except FROM_SQLITE as error:
        raise BadBackup(file=file, detail=str(error) or type(error).__name__) from error
    if wrong:
        raise BadBackup(file=file, detail=wrong)
    return rows


def _backup_file(file: Path) -> apsw.Connection:
    """Open a backup without writing to it. If it has a log, as a copy of a crashed file does, read it through the
    log."""
    if os.path.exists(f"{file}-journal"):
        raise BadBackup(file=file, detail=f"{file}-journal holds an unfinished transaction of it")
    if any(os.path.exists(f"{file}{part}") for part in ("-wal", "-shm")):
        return untouching(str(file))
    uri = f"file:{quote(os.path.abspath(file))}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def _refuse_foreign(db: apsw.Connection, file: Path) -> None:
    if not db.execute("SELECT 1 FROM sqlite_schema").fetchone() or db.pragma("application_id") != APPLICATION_ID:
        raise BadBackup(file=file, detail="it holds no Keptwork database")
    if (found := applied(db)) > newest():
        raise NewerDatabase(url=file, found=found, needed=newest())


def _exchanged(copy: str, path: str) -> str | None:
    """Give the copy the name of the database, under SQLite's locks. Return the new name of the old database, or
    None."""
    if not os.path.exists(path):
        aside = _set_aside(path)
        os.rename(copy, path)
        _sync_folder(Path(path))
        return aside
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        _lock(descriptor, path)
        _resemble(copy, os.fstat(descriptor))
        aside = _set_aside(path)
        os.replace(copy, path)
        _sync_folder(Path(path))
        return aside
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: str) -> None:
    """Lock the bytes that SQLite locks. This needs no readable database, and fails if any process has the file open."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, *LOCKED_BY_SQLITE)
    except (BlockingIOError, PermissionError):
        raise InUse(path=path) from None


def _resemble(copy: str, old: os.stat_result) -> None:
    """Copy mode and owner, so that the workers' user can write to the file, whichever user restores it."""
    os.chmod(copy, old.st_mode & 0o7777)
    with suppress(PermissionError):
        os.chown(copy, old.st_uid, old.st_gid)


def _set_aside(path: str) -> str | None:
    """Rename the database and its log. The first step is a hard link, which Keptwork refuses to open, so an
    interruption leaves nothing that looks complete but is not. Without hard links, a log without its file is as
    clear."""
    there = [part for part in ("", *COMPANIONS) if os.path.lexists(f"{path}{part}")]
    if not there:
        return None
    aside = _begun(path) or _unused(f"{path}.before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for part in there:
        if part:
            os.rename(f"{path}{part}", f"{aside}{part}")
            continue
        try:
            os.link(path, aside)
        except FileExistsError:
            continue  # left by an interrupted restore
        except OSError:
            os.rename(path, aside)
    return aside


def _begun(path: str) -> str | None:
    """Return the name to which an interrupted restore has started to move the database, or None."""
    folder, name = os.path.split(path)
    begun = [f"{folder}/{one}" for one in os.listdir(folder) if one.startswith(f"{name}.before-")]
    return next((one for one in begun if os.path.exists(path) and os.path.samefile(one, path)), None)


def _unused(name: str) -> str:
    taken, number = name, 1
    while os.path.lexists(taken):
        taken, number = f"{name}-{number}", number + 1
    return taken


def _sync(file: str) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(file: Path) -> None:
    _sync(str(file.parent))

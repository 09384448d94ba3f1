"""Locks the opening of a SQLite file while its name or its log is checked or exchanged.

Processes that open the file share a lock on its directory. A process that checks a leftover log, or exchanges the file
for a backup, holds the lock exclusively. So no process opens one file and finds the log of another. The lock is held
while opening, not afterward.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from keptwork.errors import Busy

SHARED, ALONE = fcntl.LOCK_SH, fcntl.LOCK_EX


@contextmanager
def entrance(path: str, how: int, seconds: float) -> Iterator[None]:
    """Hold the lock on the directory of a path, or raise Busy after this time. A directory that cannot be locked or
    read is not locked, since opening the file then reports the error."""
    try:
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        _lock(folder, how, path, seconds)
        yield
    finally:
        os.close(folder)


def _lock(folder: int, how: int, path: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(folder, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Busy(url=path, seconds=seconds) from None
            time.sleep(0.005)
        except OSError:
            return None  # a file system without such locks

"""Who may open a SQLite file while its name, its log or both are being judged or exchanged.

Openers share a lock on the folder of the file; whoever judges a leftover log, or exchanges the file for a backup, has
it alone. So nobody opens one file and finds the log of another. The lock is held while opening, not afterwards.
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
    """Hold the lock on the folder of a path, or raise Busy after that many seconds. A folder that cannot be locked or
    read is not locked: opening the file then says what is wrong."""
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

"""Where jobs leave a mark when they start, in whatever process, thread or pool of whatever system they run.

Each process writes a file of its own through shared memory, which costs a job less than a microsecond and needs no
help of the system under measurement. Only the standard library is used: peers have environments of their own.
"""

import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOM = 2_000_000
HEAD, RECORD = struct.Struct("=q"), struct.Struct("=dd")


class Mark(NamedTuple):
    """When a job started and when it was sent (0 if it does not say), by the clock all processes share."""

    started: float
    sent: float


class Tally:
    """The marks of this process. A process forked from this one begins a file of its own with its first mark."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._owner = 0
        self._lock = threading.Lock()

    def mark(self, sent: float = 0.0) -> None:
        started = time.monotonic()
        if self._owner != os.getpid():
            self._begin()
        with self._lock:
            RECORD.pack_into(self._memory, HEAD.size + self._count * RECORD.size, started, sent)
            self._count += 1
            HEAD.pack_into(self._memory, 0, self._count)

    def _begin(self) -> None:
        with self._lock:
            if self._owner == os.getpid():
                return
            self._count = 0
            with (self._folder / f"{os.getpid()}.tally").open("w+b") as file:
                file.truncate(HEAD.size + ROOM * RECORD.size)
                self._memory = mmap.mmap(file.fileno(), 0)
            self._owner = os.getpid()


def counted(folder: Path) -> int:
    """How many jobs have started so far; cheap enough to ask while they run."""
    total = 0
    for path in folder.glob("*.tally"):
        with path.open("rb") as file:
            head = file.read(HEAD.size)
            total += HEAD.unpack(head)[0] if len(head) == HEAD.size else 0
    return total


def marks(folder: Path) -> list[list[Mark]]:
    """All marks, those of each process by themselves."""
    found = []
    for path in folder.glob("*.tally"):
        with path.open("rb") as file:
            count = HEAD.unpack(file.read(HEAD.size))[0]
            found.append([Mark(*fields) for fields in RECORD.iter_unpack(file.read(count * RECORD.size))])
    return found

"""The one thread that writes to a SQLite file: it commits whatever is waiting as one group.

A commit costs a sync of the disk, whatever is in it. So while one group is being synced the next one gathers, and
under load many callers share a sync; each still hears only when its own work is on disk. A unit of work that fails is
undone alone, by its savepoint.

Processes take turns by a lock on a file beside the database, where the kernel wakes the next in line; SQLite's own way
to wait is to sleep and try again, which starves the unlucky.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apsw

from detent.clock import Clock
from detent.errors import NotWritable
from detent.store.queries import Catalogue
from detent.store.sqlite_file import MEMORY, explanation
from detent.store.sqlite_session import Session

MOST_IN_A_GROUP = 512


@dataclass(slots=True)
class Unit:
    """A piece of work and who waits for it. One that is `alone` opens and ends its transaction itself."""

    work: Callable[[Session], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    alone: bool = False
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Runs units of work, in order, on a thread of its own."""

    def __init__(self, db: apsw.Connection, path: str, catalogue: Catalogue, clock: Clock) -> None:
        self._db = db
        self._path = path
        self._session = Session(db, catalogue)
        self._clock = clock
        self._turn = None if path == MEMORY else open_turn(path)
        self._waiting: deque[Unit] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="detent-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[Session], Any], *, alone: bool = False) -> Any:
        """The result of the work, once it is on disk."""
        loop = asyncio.get_running_loop()
        unit = Unit(work, loop, loop.create_future(), alone)
        with self._changed:
            self._waiting.append(unit)
            self._changed.notify()
        return await unit.future

    def close(self) -> None:
        """Finishes what is waiting and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._db.close()
        if self._turn is not None:
            os.close(self._turn)

    def begin(self) -> None:
        """Takes this process's turn and opens a transaction; its time is not before the newest event's."""
        if self._turn is not None:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._session.now = self._clock.now(self._session.last_time())
        except BaseException:
            self.end("ROLLBACK")
            raise

    def end(self, how: str) -> None:
        """Commits or rolls back, and passes the turn on. A failed commit leaves nothing half done."""
        try:
            if self._db.in_transaction:
                self._db.execute(how)
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if self._turn is not None:
                fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _run(self) -> None:
        while group := self._gather():
            if group[0].alone:
                self.attempt(group[0])
            else:
                self._commit(group)
            tell(group)

    def _gather(self) -> list[Unit]:
        """Waits for work: one unit that wants to be alone, or as many others as there are. Nothing: time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if self._waiting and self._waiting[0].alone:
                return [self._waiting.popleft()]
            group: list[Unit] = []
            while self._waiting and not self._waiting[0].alone and len(group) < MOST_IN_A_GROUP:
                group.append(self._waiting.popleft())
            return group

    def _commit(self, group: list[Unit]) -> None:
        try:
            self.begin()
            for unit in group:
                if len(group) == 1:
                    unit.result = unit.work(self._session)
                else:
                    self._attempt_in_savepoint(unit)
            self.end("COMMIT")
        except BaseException as error:  # whatever it was, everyone in the group must hear of it
            self.end("ROLLBACK")
            for unit in group:
                unit.error = self._explained(error)

    def _attempt_in_savepoint(self, unit: Unit) -> None:
        self._db.execute("SAVEPOINT unit")
        self.attempt(unit)
        if unit.error:
            self._db.execute("ROLLBACK TO unit")
        self._db.execute("RELEASE unit")

    def attempt(self, unit: Unit) -> None:
        """Runs the work and keeps what came of it."""
        try:
            unit.result = unit.work(self._session)
        except Exception as error:
            unit.error = self._explained(error)

    def _explained(self, error: BaseException) -> BaseException:
        return explanation(error, self._path) if isinstance(error, apsw.Error) else error


def open_turn(path: str) -> int:
    """The file whose lock is the turn to write."""
    try:
        return os.open(f"{path}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise NotWritable(path=f"{path}-turn", detail=error.strerror) from error


def tell(units: list[Unit]) -> None:
    """Wakes those who wait, once for each event loop."""
    for loop in {unit.loop for unit in units}:
        mine = [unit for unit in units if unit.loop is loop]
        try:
            loop.call_soon_threadsafe(_resolve, mine)
        except RuntimeError:
            continue  # the loop is gone, and with it everyone who waited; the work itself is done


def _resolve(units: list[Unit]) -> None:
    for unit in units:
        if unit.future.done():
            continue
        if unit.error is not None:
            unit.future.set_exception(unit.error)
        else:
            unit.future.set_result(unit.result)

"""The only thread that writes to a SQLite file. It commits all waiting work as one group.

Each commit costs one disk sync. While one group syncs, the next group forms, so under load many
callers share a sync. Each caller is notified only when its own work is on disk. A unit of work that fails is rolled
back alone, by its savepoint.

A short unit that is the only one waiting is committed on the caller's thread, the event loop's, since that is faster
than two thread switches. On a disk that syncs slowly, this is not done.

Processes take turns by a lock on a file next to the database, where the kernel wakes the next in line. SQLite's own
method, to sleep and try again, can starve a process. A wait for that lock has no timeout, so a second thread watches
it. If another process keeps the lock for too long (it might have been stopped during a write), all callers that wait
here get an error.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw

from keptwork.core.clock import Clock
from keptwork.errors import Busy, NotWritable, StoreError
from keptwork.store.counters import Tally
from keptwork.store.sqlite.file import BUSY_SECONDS, FROM_SQLITE, MEMORY, explanation
from keptwork.store.sqlite.session import Session
from keptwork.store.statements import Catalogue

T = TypeVar("T")

MOST_IN_A_GROUP = 512
FEW_ROWS = 16
BRIEF_SECONDS = 0.002
TICKS = 10


@dataclass(slots=True, eq=False)
class Unit:
    """A piece of work and its caller's future. A unit that is `alone` starts and ends its transaction itself."""

    work: Callable[[Session], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    alone: bool = False
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Runs units of work, in order, on a thread of its own."""

    def __init__(self, db: apsw.Connection, path: str, catalogue: Catalogue, clock: Clock, tally: Tally) -> None:
        self._db = db
        self._path = path
        self._session = Session(db, catalogue, tally)
        self.tally = tally
        self._clock = clock
        self._turn = None if path == MEMORY else open_turn(path)
        self._waiting: deque[Unit] = deque()
        self._group: list[Unit] = []
        self._waits_since: float | None = None
        self._waits_too_long = False
        self._watcher: threading.Thread | None = None
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._usual_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="keptwork-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[Session], T], *, rows: int = MOST_IN_A_GROUP, alone: bool = False) -> T:
        """Return the result of the work once it is on disk."""
        loop = asyncio.get_running_loop()
        unit = Unit(work, loop, loop.create_future(), alone)
        with self._changed:
            if self._closing:
                raise StoreError(url=self._path, detail="it was closed")
            self._waiting.append(unit)
        if rows <= FEW_ROWS and not alone and self._usual_seconds < BRIEF_SECONDS:
            await self._gather_others(unit)
            self._commit_here(unit)
        with self._changed:
            if self._waiting:
                self._changed.notify()
        result: T = await unit.future
        return result

    async def _gather_others(self, unit: Unit) -> None:
        """Yield to the event loop once, so that other callers that are ready to write join the same group."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            with self._changed:
                if unit in self._waiting:
                    self._waiting.remove(unit)
            raise

    def _commit_here(self, unit: Unit) -> None:
        """Commit the unit on the caller's thread if it is the only one waiting and the lock is free."""
        with self._changed:
            if self._busy or len(self._waiting) != 1 or self._waiting[0] is not unit or not self._take_turn(wait=False):
                return
            self._waiting.popleft()
            self._busy = True
        began = time.perf_counter()
        self._commit([unit])
        self._usual_seconds += (time.perf_counter() - began - self._usual_seconds) / 8
        _resolve([unit])
        self._busy = False

    def close(self) -> None:
        """Finish waiting work and end the threads. A thread that waits too long for its turn is abandoned."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        while self._thread.is_alive() and not self._waits_too_long:
            self._thread.join(BUSY_SECONDS / TICKS)
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        if self._thread.is_alive():
            return
        self._db.close()
        if self._turn is not None:
            os.close(self._turn)

    def begin(self) -> None:
        """Take this process's turn and start a transaction. Its time is not before the newest event's."""
        self._take_turn(wait=True)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._session.now = self._clock.now(self._session.last_time())
        except BaseException:
            self.end("ROLLBACK")
            raise

    def end(self, how: str) -> None:
        """Commit or roll back, and pass the turn on. A failed commit is rolled back."""
        try:
            if self._db.in_transaction:
                self._db.execute(how)
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if self._turn is not None:
                fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _take_turn(self, *, wait: bool) -> bool:
        if self._turn is None:
            return True
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait:
                self._wait_for_turn(self._turn)
            return wait
        return True

    def _wait_for_turn(self, turn: int) -> None:
        with self._changed:
            self._waits_since = time.monotonic()
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="keptwork-sqlite-watcher", daemon=True)
                self._watcher.start()
        fcntl.flock(turn, fcntl.LOCK_EX)
        with self._changed:
            too_long, self._waits_since, self._waits_too_long = self._waits_too_long, None, False
        if too_long:  # the callers already got the error and might have tried again
            fcntl.flock(turn, fcntl.LOCK_UN)
            raise self._locked()

    def _watch(self) -> None:
        """Watch the wait for the turn, on a thread that starts when the turn is first waited for."""
        while not self._ended.wait(BUSY_SECONDS / TICKS):
            with self._changed:
                if self._waits_since is None or time.monotonic() - self._waits_since < BUSY_SECONDS:
                    continue
                self._waits_too_long = True
                held_up = [*self._group, *self._waiting]
                self._waiting.clear()
            for unit in held_up:
                unit.error = self._locked()
            tell(held_up)

    def _locked(self) -> Busy:
        return Busy(url=self._path, seconds=BUSY_SECONDS)

    def _run(self) -> None:
        while group := self._gather():
            began = time.perf_counter()
            if group[0].alone:
                self.attempt(group[0])
            else:
                self._commit(group)
                self._usual_seconds += ((time.perf_counter() - began) / len(group) - self._usual_seconds) / 8
            self._busy = False
            tell(group)

    def _gather(self) -> list[Unit]:
        """Wait for work. Return one unit that must be alone, or as many others as there are. Return nothing to end the
        thread."""
        with self._changed:
            self._changed.wait_for(lambda: (self._waiting or self._closing) and not self._busy)
            self._busy = True
            self._group = group = []
            if self._waiting and self._waiting[0].alone:
                group.append(self._waiting.popleft())
                return group
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
                    self.attempt_in_savepoint(unit)
            self.end("COMMIT")
        except BaseException as error:  # every caller in the group must get any error
            self.end("ROLLBACK")
            for unit in group:
                unit.error = self._explained(error)

    def attempt_in_savepoint(self, unit: Unit) -> None:
        """Run the work, and roll back only this work if it fails. A full disk rolls back the whole transaction. The
        other units must then get that error, not one about a missing savepoint."""
        self._db.execute("SAVEPOINT unit")
        self.attempt(unit)
        if unit.error and not self._db.in_transaction:
            raise unit.error
        if unit.error:
            self._db.execute("ROLLBACK TO unit")
        self._db.execute("RELEASE unit")

    def attempt(self, unit: Unit) -> None:
        """Run the work and store its result or error."""
        try:
            unit.result = unit.work(self._session)
        except Exception as error:
            unit.error = self._explained(error)

    def _explained(self, error: BaseException) -> BaseException:
        return explanation(error, self._path) if isinstance(error, FROM_SQLITE) else error


def open_turn(path: str) -> int:
    """Open the file whose lock is the turn to write. It is named after the database file, not after a link to it."""
    try:
        return os.open(f"{os.path.realpath(path)}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise NotWritable(path=f"{path}-turn", detail=error.strerror) from error


def tell(units: list[Unit]) -> None:
    """Resolve the futures of units, with one callback for each event loop."""
    for loop in {unit.loop for unit in units}:
        mine = [unit for unit in units if unit.loop is loop]
        try:
            loop.call_soon_threadsafe(_resolve, mine)
        except RuntimeError:
            continue  # the loop and all its callers are gone, but the work is done


def _resolve(units: list[Unit]) -> None:
    for unit in units:
        if unit.future.done():
            continue
        if unit.error is not None:
            unit.future.set_exception(unit.error)
        else:
            unit.future.set_result(unit.result)

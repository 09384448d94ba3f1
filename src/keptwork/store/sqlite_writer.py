"""The one thread that writes to a SQLite file: it commits whatever is waiting as one group.

A commit costs a sync of the disk, whatever is in it. So while one group is being synced the next one gathers, and
under load many callers share a sync; each still hears only when its own work is on disk. A unit of work that fails is
undone alone, by its savepoint.

A short piece of work that nobody else waits beside is committed where it was asked for, on the event loop's thread: it
takes less time than two changes of thread. On a disk that syncs slowly nothing is done there.

Processes take turns by a lock on a file beside the database, where the kernel wakes the next in line; SQLite's own way
to wait is to sleep and try again, which starves the unlucky. That lock cannot be waited for with a limit, so a second
thread watches the wait: when another process keeps the turn for too long (it was stopped in the middle of a write),
everybody who waits here is told so.
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

from keptwork.clock import Clock
from keptwork.errors import Busy, NotWritable, StoreError
from keptwork.store.queries import Catalogue
from keptwork.store.sqlite_file import BUSY_SECONDS, FROM_SQLITE, MEMORY, explanation
from keptwork.store.sqlite_session import Session
from keptwork.store.tally import Tally

T = TypeVar("T")

MOST_IN_A_GROUP = 512
FEW_ROWS = 16
BRIEF_SECONDS = 0.002
TICKS = 10


@dataclass(slots=True, eq=False)
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
        """The result of the work, once it is on disk."""
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
        """One round of the loop: whoever else is ready to write comes into the same group."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            with self._changed:
                if unit in self._waiting:
                    self._waiting.remove(unit)
            raise

    def _commit_here(self, unit: Unit) -> None:
        """Commits the unit on the caller's thread, if it is the only one waiting and the turn is free."""
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
        """Finishes what is waiting and ends the threads; one that waits in vain for its turn is left behind."""
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
        """Takes this process's turn and opens a transaction; its time is not before the newest event's."""
        self._take_turn(wait=True)
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
        if too_long:  # those who waited have been told, and may have asked again
            fcntl.flock(turn, fcntl.LOCK_UN)
            raise self._locked()

    def _watch(self) -> None:
        """On a thread of its own, from the first time the turn has to be waited for."""
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
        """Waits for work: one unit that wants to be alone, or as many others as there are. Nothing: time to end."""
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
        except BaseException as error:  # whatever it was, everyone in the group must hear of it
            self.end("ROLLBACK")
            for unit in group:
                unit.error = self._explained(error)

    def attempt_in_savepoint(self, unit: Unit) -> None:
        """Runs the work; if it fails, it alone is undone. A full disk undoes the whole transaction, whose other units
        must then hear of that, and not of a savepoint that is gone."""
        self._db.execute("SAVEPOINT unit")
        self.attempt(unit)
        if unit.error and not self._db.in_transaction:
            raise unit.error
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
        return explanation(error, self._path) if isinstance(error, FROM_SQLITE) else error


def open_turn(path: str) -> int:
    """The file whose lock is the turn to write. It is named after the file, not after a link to it."""
    try:
        return os.open(f"{os.path.realpath(path)}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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

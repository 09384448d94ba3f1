"""Base class of maintenance tasks that check when notified or when a check is due, and report work that they find."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime

from keptwork.errors import StoreError
from keptwork.store import Store

# Log an unreachable database once when the outage starts and once when it ends, whichever task meets it.
#
# Every task retries by itself. An error that no retry can fix ends the worker.


log = logging.getLogger("keptwork")


class Outage:
    """The tasks of a worker that cannot reach the database, or its server.

    The outage ends when no such task is left.
    """

    def __init__(self, what: str = "database") -> None:
        self._what = what
        self._waiting: set[str] = set()
        self._began = 0.0
        self._lock = threading.Lock()

    def endure(self, duty: str, error: StoreError) -> None:
        """Note the outage for a task that will retry. Raise an error that would only recur."""
        if error.lasting:
            raise error
        self.note(duty, error)

    def note(self, duty: str, error: BaseException) -> None:
        """Note that a task cannot do its work for now."""
        with self._lock:
            if not self._waiting:
                self._began = time.monotonic()
                log.warning("%s out of reach since %s: %s", self._what, _now(), error)
            self._waiting.add(duty)

    def over(self, duty: str) -> None:
        """Note a success of this task.

        It is called after every success, so it takes no lock unless there is an outage.
        """
        if duty not in self._waiting:
            return
        with self._lock:
            self._waiting.discard(duty)
            if not self._waiting:
                log.warning("%s is back after %.1f s", self._what, time.monotonic() - self._began)


def _now() -> str:
    return datetime.now(UTC).isoformat(" ", "seconds")


BEAT_SECONDS = 1.0


class Lookout(ABC):
    """Sleeps until the next check is due, at most `BEAT_SECONDS`; every process can have one."""

    name: str
    """The name of the task in reports of an outage."""

    def __init__(self, store: Store, found: Callable[[], None], outage: Outage) -> None:
        self._store = store
        self._found = found
        self._outage = outage
        self._rung = asyncio.Event()
        self._looking = asyncio.Lock()

    def ring(self) -> None:
        """Check soon, because there might be work."""
        self._rung.set()

    async def run(self) -> None:
        while True:
            self._rung.clear()
            seconds = await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, BEAT_SECONDS)):
                    await self._rung.wait()

    async def look(self) -> float:
        """Do the work that is due, and return the seconds until the next check, as far as known."""
        try:
            async with self._looking:
                seconds = await self.run_once()
            self._outage.over(self.name)
            return seconds
        except StoreError as error:
            self._outage.endure(self.name, error)
            return BEAT_SECONDS

    @abstractmethod
    async def run_once(self) -> float:
        """Do the work that is due; an unreachable database raises `StoreError`."""

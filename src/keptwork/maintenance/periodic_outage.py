"""Log an unreachable database once when the outage starts and once when it ends, whichever task meets it.

Every task retries by itself. An error that no retry can fix ends the worker.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime

from keptwork.errors import StoreError

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

"""A database out of reach: said once when it begins and once when it is over, whoever of the worker's duties meets it.

Every duty tries again by itself. What no repetition can heal is not waited for: it ends the worker.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime

from keptwork.errors import StoreError

log = logging.getLogger("keptwork")


class Outage:
    """Which duties of a worker cannot reach the database, or the server it works for. The outage is over when none is
    left."""

    def __init__(self, what: str = "database") -> None:
        self._what = what
        self._waiting: set[str] = set()
        self._began = 0.0
        self._lock = threading.Lock()

    def endure(self, duty: str, error: StoreError) -> None:
        """This duty will try again; an error that would only come back is raised instead."""
        if error.lasting:
            raise error
        self.note(duty, error)

    def note(self, duty: str, error: BaseException) -> None:
        """This duty cannot do its work for now."""
        with self._lock:
            if not self._waiting:
                self._began = time.monotonic()
                log.warning("%s out of reach since %s: %s", self._what, _now(), error)
            self._waiting.add(duty)

    def over(self, duty: str) -> None:
        """This duty did its work. Called after every success, so it costs no lock while all is well."""
        if duty not in self._waiting:
            return
        with self._lock:
            self._waiting.discard(duty)
            if not self._waiting:
                log.warning("%s is back after %.1f s", self._what, time.monotonic() - self._began)


def _now() -> str:
    return datetime.now(UTC).isoformat(" ", "seconds")

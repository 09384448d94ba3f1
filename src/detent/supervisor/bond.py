"""What ties a worker's process to its supervisor: it is told whose it is, and never outlives it."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from detent.process.bonds import die_with

NAME, PID = "DETENT_SUPERVISOR", "DETENT_SUPERVISOR_PID"


class Bond(NamedTuple):
    """A supervisor as its workers know it."""

    name: str
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        """What a worker's process is started with."""
        return {NAME: self.name, PID: str(self.pid)}


def bound_to_supervisor() -> Bond | None:
    """For a worker's process: whose it is, if anybody's. From here on it dies with its supervisor, even by kill -9.
    What this process starts itself is not told: it is nobody's worker."""
    name, pid = os.environ.pop(NAME, ""), os.environ.pop(PID, "")
    if not name or not pid.isdecimal():
        return None
    die_with(int(pid), signal.SIGKILL)
    return Bond(name, int(pid))

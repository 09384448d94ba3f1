"""Tie a worker's process to its supervisor: it reads its supervisor, reports its start, and never outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import NamedTuple

from keptwork.process.tree_bonds import die_with

NAME, PID, FD = "KEPTWORK_SUPERVISOR", "KEPTWORK_SUPERVISOR_PID", "KEPTWORK_SUPERVISOR_FD"


class Bond(NamedTuple):
    """A supervisor as its worker sees it: its name, its process ID, and a pipe to it."""

    name: str
    pid: int
    fd: int

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for a worker's process."""
        return {NAME: self.name, PID: str(self.pid), FD: str(self.fd)}

    def report(self, worker: int, database: str) -> None:
        """Report once that the worker is registered."""
        self._say({"worker": worker, "database": database})

    def refuse(self, reason: str) -> None:
        """Report that the worker cannot start, and that another start would fail like this one."""
        self._say({"refused": reason})

    def _say(self, what: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self.fd, json.dumps(what).encode() + b"\n")
            os.close(self.fd)


def bound_to_supervisor() -> Bond | None:
    """Return the supervisor of this worker process, or None.

    From here on this process dies with its supervisor, even after kill -9. The variables are removed, so that child
    processes do not take themselves for supervised workers.
    """
    name, pid, fd = (os.environ.pop(variable, "") for variable in (NAME, PID, FD))
    if not name or not pid.isdecimal() or not fd.isdecimal():
        return None
    die_with(int(pid), signal.SIGKILL)
    os.set_inheritable(int(fd), False)
    return Bond(name, int(pid), int(fd))

"""Worker processes under a test's hand: started, killed, stopped, continued and replaced. None outlives its fleet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from tests.support.command import environment

WORKER_PROGRAM = ("tests.acceptance.worker_program",)


@dataclass(slots=True)
class Member:
    """One process, by the name it registers under."""

    name: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, what: signal.Signals) -> None:
        if self.alive:
            os.killpg(self.pid, what)


class Fleet:
    """Workers of one database and one sink."""

    def __init__(self, url: str, port: int, lease: str = "2s", twin: str = "", **settings: str) -> None:
        self.url = url
        self._port = str(port)
        self._environment = environment_of_tests(**settings)
        self._settings = (lease, *([twin] if twin else []))
        self.members: list[Member] = []
        self.absences: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._started = 0

    def start(self, count: int, *program: str) -> list[Member]:
        """Members that run the worker program, or another one that takes the same arguments after its own."""
        first = self._started + 1
        self._started += count
        return [self.start_as(f"member-{number}", *program) for number in range(first, first + count)]

    def start_as(self, name: str, *program: str) -> Member:
        """A new process under a name that others may have had before."""
        command = [sys.executable, "-m", *(program or WORKER_PROGRAM), self.url, self._port, name, *self._settings]
        # A group of its own in the test's session: should the test die, the kernel wakes stopped members to end.
        new = Member(name, subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0, env=self._environment))
        self.members.append(new)
        return new

    def kill(self, member: Member) -> None:
        self.note_absence([member.pid], time.time(), inf)
        member.send(signal.SIGKILL)
        self._bury(member)

    def note_absence(self, pids: Iterable[int], begins: float, ends: float) -> None:
        """When which processes were struck: what they held must be somebody else's soon after."""
        for pid in pids:
            self.absences[pid].append((begins, ends))

    def bury_dead(self) -> list[Member]:
        """Those that died without being asked to."""
        dead = [member for member in self.members if not member.alive]
        for member in dead:
            self._bury(member)
        return dead

    def _bury(self, member: Member) -> None:
        member.process.wait()
        if member.process.stdin is not None:
            member.process.stdin.close()
        self.members.remove(member)

    def close(self) -> None:
        for member in list(self.members):
            member.send(signal.SIGKILL)
            self._bury(member)


def environment_of_tests(**settings: str) -> dict[str, str]:
    """For programs of the tests themselves."""
    return environment(PYTHONPATH=os.pathsep.join(path for path in sys.path if path), **settings)

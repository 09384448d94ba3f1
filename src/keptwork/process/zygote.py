"""The zygote: a single-threaded process that does the imports once and forks a keeper on request.

It is started as a new process, never forked from a worker with threads and connections: `python -m
keptwork.process.zygote FD PID PROGRAM`. The program is a module with two functions. `prepare(what)` is called before
the fork, and `run(what, talk)` is called in the forked process. The zygote adopts and ends what a killed keeper leaves
behind.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
from typing import Any

from keptwork.process import tree_bonds
from keptwork.process.frames import receive
from keptwork.process.tree import children, descendants, signal_all
from keptwork.process.zygote_keeper import Keeper

SWEEP_MS = 10


class Zygote:
    """Forks keepers for one worker until the worker disconnects."""

    def __init__(self, line: socket.socket, program: Any) -> None:
        self._line = line
        self._program = program
        self._keepers = set(children(os.getpid()))  # a process that an import started is neither a keeper nor an orphan
        self._heard, self._bell = os.pipe()
        for end in (self._heard, self._bell):
            os.set_blocking(end, False)

    def serve(self) -> None:
        tree_bonds.adopt_orphans()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        poll.register(self._line, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll(SWEEP_MS if self._sweep() else None):
                if descriptor == self._heard:
                    os.read(self._heard, 4096)
                elif (received := receive(self._line)) is None:
                    return
                else:
                    self._fork(*received[1])

    def _fork(self, line: int) -> None:
        """Fork a keeper for this connection. If the fork fails, the worker finds the connection closed."""
        zygote = os.getpid()
        with contextlib.suppress(OSError):  # no more processes are allowed
            keeper = os.fork()
            if not keeper:
                tree_bonds.run_and_exit(lambda: self._keep(zygote, line))
            self._keepers.add(keeper)
        os.close(line)

    def _keep(self, zygote: int, line: int) -> None:
        """Run a keeper, in the forked child."""
        tree_bonds.die_with(zygote, signal.SIGTERM)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._line.close()
        os.close(self._heard)
        os.close(self._bell)
        Keeper(socket.socket(fileno=line), self._program.prepare, self._program.run).serve()

    def _sweep(self) -> bool:
        """Reap dead children, kill what a dead keeper left behind, and return whether anything is left."""
        while (dead := _dead_child()) is not None:
            self._keepers.discard(dead)
        orphans = [pid for pid in children(os.getpid()) if pid not in self._keepers]
        signal_all([each for pid in orphans for each in (pid, *descendants(pid))], signal.SIGKILL)
        return bool(orphans)


def _dead_child() -> int | None:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] or None
    except ChildProcessError:
        return None


def main(descriptor: str, worker: str, program: str) -> None:
    tree_bonds.die_with(int(worker), signal.SIGTERM)
    line = socket.socket(fileno=int(descriptor))
    received = receive(line)
    if received is None:
        return
    orders = received[0]
    sys.path[:] = orders["path"]
    module = importlib.import_module(program)
    for what in orders["preload"]:
        with contextlib.suppress(Exception, SystemExit):  # the failure is reported to the first caller that needs it
            module.prepare(what)
    tree_bonds.flush()
    gc.collect()
    gc.freeze()  # so that no collection after a fork copies shared pages
    Zygote(line, module).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

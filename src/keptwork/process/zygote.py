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
import time
from collections.abc import Callable
from typing import Any

from keptwork.process import tree
from keptwork.process.frames import framed, receive
from keptwork.process.resource_limits import Limits
from keptwork.process.tree import Tree, children, descendants, signal_all

# The keeper: a small parent process that starts a process tree, watches it, and ends it.
#
# The tree ends when its leader ends, when the worker requests it or disconnects (also after kill -9), when the zygote
# dies, and when the tree exceeds its limits. On request, it gets SIGTERM first and SIGKILL after a grace period. The
# keeper reports when nothing of the tree is left, and only then takes the next errand.


WATCH_SECONDS = 0.25
KILL_SECONDS = 2.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.05

Prepare = Callable[[Any], None]
Run = Callable[[Any, socket.socket], None]


class Keeper:
    """Serves one connection to a worker, one errand at a time."""

    def __init__(self, line: socket.socket, prepare: Prepare, run: Run) -> None:
        self._line = line
        self._prepare = prepare
        self._run = run
        self._ending = False
        self._grace = 0.0
        self._kill_at: float | None = None
        self._why: str | None = None
        self._heard, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._heard, False)

    def serve(self) -> None:
        """Serve errands until the worker disconnects."""
        os.setsid()
        tree.adopt_orphans()
        while not self._ending and (received := receive(self._line)) is not None:
            errand, descriptors = received
            if descriptors:  # otherwise a request to end a tree that has just ended
                with socket.socket(fileno=descriptors[0]) as talk:
                    report = self._do(errand, talk)
                with contextlib.suppress(OSError):
                    self._line.sendall(framed({**report, "last": self._ending}))

    def _do(self, errand: Any, talk: socket.socket) -> dict[str, Any]:
        limits, self._grace = Limits(*errand["limits"]), errand["grace"]
        try:
            self._prepare(errand["what"])
            tree = self._planted(limits, errand["what"], talk)
        except (Exception, SystemExit) as error:
            return {"refused": f"{type(error).__name__}: {error}"[:4000]}
        talk.close()
        self._watch(tree, limits)
        self._stop_listening()
        return {"code": tree.code, "cpu": tree.cpu_seconds, "peak": tree.peak_bytes, "why": self._why}

    def _planted(self, limits: Limits, what: Any, talk: socket.socket) -> Tree:
        tree.flush()
        self._kill_at = self._why = None
        self._listen_to_signals()
        keeper, leader = os.getpid(), os.fork()
        if not leader:
            tree.run_and_exit(lambda: self._lead(keeper, limits, what, talk))
        return Tree(leader)

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)

    def _stop_listening(self) -> None:
        """Restore SIGTERM, which without a tree simply ends the keeper. A SIGTERM that has just arrived is still
        honored."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with contextlib.suppress(BlockingIOError):
            self._ending |= signal.SIGTERM in os.read(self._heard, 4096)

    def _lead(self, keeper: int, limits: Limits, what: Any, talk: socket.socket) -> None:
        """Run in the forked child, without the keeper's resources, and die with the keeper."""
        tree.die_with(keeper, signal.SIGKILL)
        os.setpgid(0, 0)  # the child already has its own session through the keeper
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        self._line.close()
        os.close(self._heard)
        os.close(self._bell)
        limits.impose()
        self._run(what, talk)

    def _watch(self, tree: Tree, limits: Limits) -> None:
        """Watch until the leader has ended or must be killed, then kill the rest of the tree."""
        while tree.reap() and tree.code is None and (self._kill_at is None or time.monotonic() < self._kill_at):
            self._listen(tree, self._patience(limits))
            self._compare(tree, limits)
        self._kill(tree)

    def _kill(self, tree: Tree) -> None:
        """Kill the tree repeatedly, because a killed process might just have forked. A process that cannot be killed
        (it changed its user, or is stuck in the kernel) is left to the zygote, and this keeper is not reused."""
        end, pause = time.monotonic() + KILL_SECONDS, SHORTEST_PAUSE
        while tree.reap():
            if time.monotonic() > end:
                self._ending = True
                return
            tree.send(signal.SIGKILL)
            pause = min(pause * 2, LONGEST_PAUSE)
            self._listen(tree, pause)
        tree.send_group(signal.SIGKILL)

    def _patience(self, limits: Limits) -> float | None:
        if self._kill_at is not None:
            return max(0.0, self._kill_at - time.monotonic())
        return WATCH_SECONDS if limits else None

    def _listen(self, tree: Tree, seconds: float | None) -> None:
        """Wait for the worker and for signals, at most this many seconds."""
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        if not self._ending:
            poll.register(self._line, select.POLLIN)
        for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000 + 1):
            if descriptor == self._heard:
                if signal.SIGTERM in os.read(self._heard, 4096):
                    self._end(tree)
            else:
                self._ending = receive(self._line) is None
                self._terminate(tree)

    def _end(self, tree: Tree) -> None:
        self._ending = True
        self._terminate(tree)

    def _terminate(self, tree: Tree) -> None:
        if self._kill_at is None:
            self._why = "asked"
            tree.send(signal.SIGTERM)
            self._kill_at = time.monotonic() + self._grace

    def _compare(self, tree: Tree, limits: Limits) -> None:
        """Schedule the kill of a tree that exceeds its limits."""
        if self._kill_at is not None or not limits:
            return
        if limits.memory_bytes is not None and tree.uses_more_than(limits.memory_bytes):
            self._why, self._kill_at = "memory", 0.0
        elif limits.cpu_seconds is not None and tree.used_cpu_seconds() > limits.cpu_seconds + 1:
            self._why, self._kill_at = "cpu", 0.0


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
        tree.adopt_orphans()
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
                tree.run_and_exit(lambda: self._keep(zygote, line))
            self._keepers.add(keeper)
        os.close(line)

    def _keep(self, zygote: int, line: int) -> None:
        """Run a keeper, in the forked child."""
        tree.die_with(zygote, signal.SIGTERM)
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
    tree.die_with(int(worker), signal.SIGTERM)
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
    tree.flush()
    gc.collect()
    gc.freeze()  # so that no collection after a fork copies shared pages
    Zygote(line, module).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

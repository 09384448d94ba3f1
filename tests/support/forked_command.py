"""The command `keptwork` without its imports: a process that has made them all becomes it, in a fork, whenever asked.

What is run so is a process of its own with arguments, an environment, a folder and standard streams of its own, and it
ends as the interpreter ends. It is spared what all commands begin with, most of the time that a short one takes.

Usage: python -m tests.support.forked_command FD. Over that line come connections; over each of them one command, and
back go the number of its process and its exit code.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from keptwork.process import tree
from keptwork.process.frames import framed, receive

ALSO = ("keptwork.store.sqlite.store", "keptwork.store.postgres.store", "keptwork.workers.worker", "keptwork.app")


class ForkedCommands:
    """Runs commands, for every thread of this process, until it is closed or this process ends."""

    def __init__(self, environment: Mapping[str, str], also: Sequence[str] = ()) -> None:
        self._line, theirs = socket.socketpair()
        self._turn = threading.Lock()
        argv = [sys.executable, "-m", "tests.support.forked_command", str(theirs.fileno()), *also]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join((environment["PYTHONPATH"], root))
        with theirs:
            self._process = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**environment, "PYTHONPATH": path}
            )

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path | None,
        env: Mapping[str, str],
        files: Sequence[int],
        seconds: float,
        begun: Callable[[int], None] = lambda process: None,
    ) -> int:
        """The exit code of the command with these standard streams; one that takes too long is killed. `begun` is told
        its process."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with self._turn:
                socket.send_fds(self._line, [framed("command")], [theirs.fileno()])
            told = framed({"arguments": [*arguments], "cwd": str(cwd or Path.cwd()), "env": dict(env)})
            ours.sendall(told[socket.send_fds(ours, [told], files) :])
            theirs.close()
            process = _answer(ours)
            begun(process)
            ours.settimeout(seconds)
            try:
                return _answer(ours)
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                ours.settimeout(None)
                _answer(ours)
                raise subprocess.TimeoutExpired([*arguments], seconds) from None

    def close(self) -> None:
        self._line.close()
        self._process.wait()


def _answer(connection: socket.socket) -> int:
    received = receive(connection)
    assert received is not None, "the process that commands are forked from is gone"
    return int(received[0])


def become_commands(line: socket.socket) -> None:
    """Returns once in the process of each command, ready to run it; the process that this is called in never comes
    back."""
    while (received := receive(line)) is not None:
        (connection,) = received[1]
        if not os.fork():
            line.close()
            _become_command(socket.socket(fileno=connection))
            return
        os.close(connection)
        _bury_dead()
    os._exit(0)


def _bury_dead() -> None:
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass


def _become_command(connection: socket.socket) -> None:
    received = receive(connection)
    assert received is not None
    told, files = received
    if command := os.fork():
        tree.run_and_exit(lambda: _tell_of(command, connection, files))
    connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    sys.path[0] = told["cwd"]
    sys.argv[1:] = told["arguments"]


def _tell_of(command: int, connection: socket.socket, files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any longer
        connection.sendall(framed(command))
        connection.sendall(framed(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])))


def import_all(also: Sequence[str] = ()) -> None:
    """What any command would, but the command itself."""
    commands = importlib.import_module("keptwork.cli.main").COMMANDS.values()
    for name in (*ALSO, *also, *(entry.target.partition(":")[0] for entry in commands)):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that no collection after a fork copies what is shared


if __name__ == "__main__":
    import_all(sys.argv[2:])
    become_commands(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("keptwork", run_name="__main__", alter_sys=True)

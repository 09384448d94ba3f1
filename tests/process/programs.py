"""A program for cages, some of it with the worst of manners: `run` does what it is told and answers in JSON."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from keptwork.process.frames import framed, receive

MB = 1 << 20


def prepare(what: Any) -> None:
    if what == "unknown":
        raise ImportError("there is no such thing\0 here")


def run(what: Any, talk: socket.socket) -> None:
    received = receive(talk)
    assert received is not None
    talk.sendall(framed(DEEDS[what](received[0])))


def echo(said: Any) -> Any:
    return said


def who(_: Any) -> dict[str, Any]:
    return {"pid": os.getpid(), "parent": os.getppid(), "zygote": _parent_of(os.getppid()), "group": os.getpgrp()}


def descriptors(_: Any) -> list[str]:
    return sorted(os.readlink(f"/proc/self/fd/{number}").partition(":")[0] for number in open_descriptors())


def open_descriptors() -> list[int]:
    """Without the one that looks."""
    return [number for number in range(3000) if os.path.exists(f"/proc/self/fd/{number}")]


def flee(path: str) -> str:
    """A child that leaves the session, loses its parent and will not hear of SIGTERM."""
    _escaped(path)
    return "left one behind"


def flee_and_wait(path: str) -> None:
    _escaped(path)
    _deaf()


def clean_up(path: str) -> None:
    """Minds SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _touch(path)
        time.sleep(1000)
    finally:
        _touch(path + ".clean")


def wait_deaf(path: str) -> None:
    _touch(path)
    _deaf()


def bomb(path: str) -> None:
    """Every process forks as fast as it can; a hundred of them at most, since others use this machine too."""
    room = mmap.mmap(-1, 8)
    _touch(path)
    while True:
        if room[0] < 100 and not os.fork():
            room[0] = min(room[0] + 1, 255)
        time.sleep(0.001)


def chain(path: str) -> None:
    """Is another process every moment: each forks one and ends."""
    _touch(path)
    if not os.fork():
        os.setsid()
        while not os.fork():
            pass
        os._exit(0)
    _deaf()


def eat(size: int) -> int:
    return len(bytearray(size))


def eat_in_two(size: int) -> None:
    """Neither of the two passes the limit."""
    eaten = bytearray(os.urandom(MB)) * (size // MB)
    if not os.fork():
        for page in range(0, size, mmap.PAGESIZE):
            eaten[page] ^= 1  # what is written to is no longer shared
    _deaf()


def spin(_: Any) -> None:
    while True:
        pass


def spin_in_three(_: Any) -> None:
    """None of the three passes the limit before all of them together do."""
    os.fork() and os.fork()
    spin(None)


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def leave(code: int) -> None:
    os._exit(code)


def flood(size: int) -> str:
    return "x" * size


def _escaped(path: str) -> None:
    if not os.fork():
        os.setsid()
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            _touch(path)
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"])  # noqa: S606 - no shell
        os._exit(0)
    os.wait()
    while not os.path.exists(path):
        time.sleep(0.001)


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1000)


def _touch(path: str) -> None:
    """All at once: whoever waits for the file may read it as soon as it is there."""
    with open(f"{path}.new", "w") as file:
        json.dump(os.getpid(), file)
    os.rename(f"{path}.new", path)


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


DEEDS: dict[str, Callable[[Any], Any]] = {
    deed.__name__: deed
    for deed in (
        *(echo, who, descriptors, flee, flee_and_wait, clean_up, wait_deaf, bomb, chain, eat, eat_in_two),
        *(spin, spin_in_three, die, leave, flood),
    )
}

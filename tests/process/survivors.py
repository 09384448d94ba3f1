"""Finding processes that outlived what they should not: by a mark in the environment they were started with."""

from __future__ import annotations

import os
import secrets
import signal
import time
from pathlib import Path

from keptwork.process.tree import signal_all

NAME = "KEPTWORK_TEST_MARK"
SECONDS = 2.0


def new_mark() -> str:
    return secrets.token_hex(16)


def marked(mark: str) -> list[int]:
    """Living processes, the dead that wait to be reaped left out; never this one."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    return [pid for pid in pids if f"{NAME}={mark}".encode() in _environment(pid)]


def survivors(mark: str, seconds: float = SECONDS) -> list[int]:
    """Who is still there when the time is over; returns as soon as nobody is."""
    end = time.monotonic() + seconds
    while (found := marked(mark)) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def assert_none(mark: str) -> None:
    """Ends those there are, so that a test that failed leaves none either."""
    left = survivors(mark)
    signal_all(left, signal.SIGKILL)
    assert not left


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""

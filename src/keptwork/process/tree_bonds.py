"""Tie a process to its parent. Only Linux supports this fully; elsewhere `adopt_orphans` returns False."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

ON_LINUX = sys.platform == "linux"
_prctl = ctypes.CDLL(None, use_errno=True).prctl if ON_LINUX else None


def adopt_orphans() -> bool:
    """Make orphaned descendants children of this process, even those that called setsid. Return whether that worked."""
    return _prctl is not None and _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def die_with(parent: int, number: signal.Signals) -> None:
    """Receive a signal when the parent dies, even by kill -9. If it is already dead, exit now."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run_and_exit(body: Callable[[], None]) -> NoReturn:
    """Run the body in a forked child, and exit without the parent's cleanup."""
    code = 1
    try:
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def flush() -> None:
    """Flush the standard streams. Call this also before a fork, or buffered output is written twice."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()

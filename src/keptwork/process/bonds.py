"""What ties a process to the one that made it. Linux has this; elsewhere these do nothing and say so."""

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
    """Whatever this process's descendants leave behind becomes its child, even what called setsid twice."""
    return _prctl is not None and _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def die_with(parent: int, number: signal.Signals) -> None:
    """Be sent a signal when the parent dies, even by kill -9; if it is dead already, end now."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run_and_exit(body: Callable[[], None]) -> NoReturn:
    """After a fork: what the child does, and nothing of what the parent would have done."""
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
    """Before a fork too, or what is not yet written is written twice."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()

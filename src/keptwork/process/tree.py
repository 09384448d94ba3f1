"""A process and all its descendants, including those that called setsid and lost their parents."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

HAS_PROC = Path(f"/proc/{os.getpid()}/stat").exists()
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the children of a process, including those not yet reaped. Without /proc, there are none."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [child for task in tasks for child in _children_of_thread(pid, task)]
    except FileNotFoundError:
        return [child for child in _all() if _parent(child) == pid] if os.path.exists(f"/proc/{pid}") else []


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process, parents before their children."""
    found = children(pid)
    for each in found:
        found += children(each)
    return found


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        # The process is gone, or it changed its user and cannot be signalled.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class Tree:
    """The process tree of a keeper: the leader and its descendants. The caller adopts orphans."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.code: int | None = None
        self.cpu_seconds = 0.0
        self.peak_bytes = 0

    def reap(self) -> bool:
        """Reap dead processes, and return whether any is still alive."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            self.cpu_seconds += used.ru_utime + used.ru_stime
            if pid == self.leader:
                self.code, self.peak_bytes = os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024

    def send(self, number: signal.Signals) -> None:
        signal_all(descendants(os.getpid()), number)
        self.send_group(number)

    def send_group(self, number: signal.Signals) -> None:
        """Signal the leader's process group, but only without /proc. A process that called setsid then escapes."""
        if not HAS_PROC:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.leader, number)

    def used_cpu_seconds(self) -> float:
        """Return the CPU time of the whole tree, including dead processes."""
        return self.cpu_seconds + sum(_cpu_seconds(pid) for pid in descendants(os.getpid()))

    def uses_more_than(self, size: int) -> bool:
        """Return whether the tree uses more memory than `size`.

        Shared pages count once. That is slow to measure, so it is done only if the resident sizes exceed the limit.
        """
        pids = descendants(os.getpid())
        return sum(map(_resident_bytes, pids)) > size and sum(map(_own_bytes, pids)) > size


def _children_of_thread(pid: int, task: str) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_bytes().split()]


def _all() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> list[bytes]:
    """Return the fields from the state on. The process name before them can contain any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent(pid: int) -> int | None:
    found = _stat(pid)
    return int(found[1]) if found else None


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of the children it has waited for."""
    return sum(map(int, _stat(pid)[11:15])) / TICKS


def _resident_bytes(pid: int) -> int:
    found = _stat(pid)
    return int(found[21]) * PAGE_BYTES if found else 0


def _own_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    shares = [line.split() for line in text.splitlines() if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))]
    return sum(int(share[1]) * 1024 for share in shares)


# Tie a process to its parent. Only Linux supports this fully; elsewhere `adopt_orphans` returns False.


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

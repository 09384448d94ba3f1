"""Limit the memory and CPU time of a process tree.

Memory is limited in two ways. RLIMIT_DATA makes an allocation of one process fail, which Python turns into a
MemoryError. It counts private writable memory. RLIMIT_AS would count address space, and so refuse threads, JIT
compilers, and mapped files that cost nothing. A keeper also sums the memory of the whole tree, including shared memory.
CPU time is limited in the same two ways: RLIMIT_CPU for one process, the keeper for the tree.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from keptwork.core.durations import Size, Span, size_bytes, span_us
from keptwork.errors import BadInput

# Memory with which a handler that ran out of memory can still report it.
RESERVE = 16 << 20
LEAST_MEMORY = 32 << 20
MOST_FILES = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a process tree. None means no limit."""

    memory_bytes: int | None = None
    cpu_seconds: int | None = None

    @classmethod
    def of(cls, memory: Size | None, cpu: Span | None) -> Limits:
        """Return the declared limits. CPU time is rounded up to whole seconds, the kernel's unit."""
        size, time_us = None if memory is None else size_bytes(memory), None if cpu is None else span_us(cpu)
        if size is not None and size < LEAST_MEMORY:
            raise BadInput(what=f"a process does not start in {size:,} bytes of memory; 64MB is little, 512MB usual")
        if time_us is not None and time_us < 1_000_000:
            raise BadInput(what=f"cpu is {cpu!r}; CPU time is limited to whole seconds, at least 1s")
        return cls(size, None if time_us is None else -(-time_us // 1_000_000))

    def __bool__(self) -> bool:
        return self.memory_bytes is not None or self.cpu_seconds is not None

    def impose(self) -> None:
        """Apply the limits to this process and, separately, to each process that it will start."""
        _limit(resource.RLIMIT_CORE, 0, 0)
        _limit(resource.RLIMIT_NOFILE, MOST_FILES, None)
        if self.memory_bytes is not None:
            _limit(resource.RLIMIT_DATA, self.memory_bytes, self.memory_bytes + RESERVE)
        if self.cpu_seconds is not None:
            # SIGXCPU ends the process; if it ignores that, it is killed a second later.
            _limit(resource.RLIMIT_CPU, self.cpu_seconds, self.cpu_seconds + 1)


def use_reserve() -> None:
    """Use the reserve after a MemoryError, to report the error."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _limit(which: int, soft: int, hard: int | None) -> None:
    """Lower a limit, and never raise it."""
    _, allowed = resource.getrlimit(which)
    most = allowed if hard is None else _lower(hard, allowed)
    resource.setrlimit(which, (_lower(soft, most), most))


def _lower(one: int, other: int) -> int:
    return other if one == resource.RLIM_INFINITY else one if other == resource.RLIM_INFINITY else min(one, other)

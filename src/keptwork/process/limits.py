"""How much a process tree may use.

Memory is limited twice. RLIMIT_DATA makes an allocation of one process fail, which Python turns into a MemoryError; it
counts private writable memory, unlike RLIMIT_AS, which counts address space and so refuses threads, JIT compilers and
mapped files that cost nothing. And a keeper adds up what the whole tree has in use, shared memory included. CPU time
likewise: RLIMIT_CPU for one process, the keeper for the tree.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from keptwork.errors import BadInput
from keptwork.moments import Span, span_us
from keptwork.sizes import Size, size_bytes

# Lets a handler that ran out of memory still say so.
RESERVE = 16 << 20
LEAST_MEMORY = 32 << 20
MOST_FILES = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit."""

    memory_bytes: int | None = None
    cpu_seconds: int | None = None

    @classmethod
    def of(cls, memory: Size | None, cpu: Span | None) -> Limits:
        """As somebody declares them. CPU time is counted in whole seconds, as the kernel does."""
        size, time_us = None if memory is None else size_bytes(memory), None if cpu is None else span_us(cpu)
        if size is not None and size < LEAST_MEMORY:
            raise BadInput(what=f"a process does not start in {size:,} bytes of memory; 64MB is little, 512MB usual")
        if time_us is not None and time_us < 1_000_000:
            raise BadInput(what=f"cpu is {cpu!r}; CPU time is limited to whole seconds, at least 1s")
        return cls(size, None if time_us is None else -(-time_us // 1_000_000))

    def __bool__(self) -> bool:
        return self.memory_bytes is not None or self.cpu_seconds is not None

    def impose(self) -> None:
        """On this process and on every one it will start, each by itself."""
        _limit(resource.RLIMIT_CORE, 0, 0)
        _limit(resource.RLIMIT_NOFILE, MOST_FILES, None)
        if self.memory_bytes is not None:
            _limit(resource.RLIMIT_DATA, self.memory_bytes, self.memory_bytes + RESERVE)
        if self.cpu_seconds is not None:
            # SIGXCPU ends it; whoever ignores that is killed a second later.
            _limit(resource.RLIMIT_CPU, self.cpu_seconds, self.cpu_seconds + 1)


def use_reserve() -> None:
    """After a MemoryError: what it takes to tell."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _limit(which: int, soft: int, hard: int | None) -> None:
    """Never more than is allowed already."""
    _, allowed = resource.getrlimit(which)
    most = allowed if hard is None else _lower(hard, allowed)
    resource.setrlimit(which, (_lower(soft, most), most))


def _lower(one: int, other: int) -> int:
    return other if one == resource.RLIM_INFINITY else one if other == resource.RLIM_INFINITY else min(one, other)

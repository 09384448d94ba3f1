"""The scope of a transaction: the block and the event loop in which it can be used."""

from __future__ import annotations

import asyncio
import os
from threading import get_ident

from keptwork.errors import OtherLoop, TransactionEnded

COMMITTED = "it was committed"
ROLLED_BACK = "it was rolled back"

_forks = 0


class Place:
    """The event loop that an object belongs to. On Python 3.11, asyncio needs a system call to get the running loop.
    This class checks whether the loop runs in the calling thread instead."""

    __slots__ = ("_forks", "_loop", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._forks = _forks

    @property
    def here(self) -> bool:
        """Whether the caller runs in that event loop."""
        loop = self._loop
        if loop is None or self._forks != _forks or not loop.is_running():
            return False
        return get_ident() == self._thread or running_loop() is loop  # several threads can run one loop in turn


class Scope:
    """The event loop that opened a transaction, and how the transaction ended."""

    __slots__ = ("_ended", "_place")

    def __init__(self) -> None:
        self._place = Place(running_loop())
        self._ended: str | None = None

    def end(self, how: str) -> None:
        """Refuse every later call."""
        self._ended = how

    def insist(self) -> None:
        """Raise unless the transaction is open and the caller runs in its event loop."""
        if self._ended is not None:
            raise TransactionEnded(how=self._ended)
        if not self._place.here:
            raise OtherLoop(what="this transaction")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the calling thread, or None. A forked child has none until it starts one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def idle_for(seconds: float) -> str:
    """Return how a transaction ended that was left idle."""
    return f"it was idle for {seconds:g} s and was rolled back"


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)

"""The scope of a transaction: the block and the event loop in which it can be used."""

from __future__ import annotations

import asyncio

from keptwork.errors import OtherLoop, TransactionEnded

COMMITTED = "it was committed"
ROLLED_BACK = "it was rolled back"


class Scope:
    """The event loop that opened a transaction, and how the transaction ended."""

    __slots__ = ("_ended", "_loop")

    def __init__(self) -> None:
        self._loop = running_loop()
        self._ended: str | None = None

    def end(self, how: str) -> None:
        """Refuse every later call."""
        self._ended = how

    def insist(self) -> None:
        """Raise unless the transaction is open and the caller runs in its event loop."""
        if self._ended is not None:
            raise TransactionEnded(how=self._ended)
        if running_loop() is not self._loop:
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

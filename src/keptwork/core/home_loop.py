"""Track the event loop that an open store belongs to, and close the store when that loop ends."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from keptwork.core.loop_scope import Place, running_loop
from keptwork.errors import BadInput

PATIENCE_SECONDS = 5.0


class Home:
    """The event loop that owns the store, at most one in this process at a time.

    A loop that ends in an orderly way, as with `asyncio.run`, closes its asynchronous generators. One of them closes
    here what belongs to the loop. From then on, calls run on a thread, until a loop claims the home for longer.
    """

    def __init__(self, close: Callable[[], Awaitable[None]], abandon: Callable[[], bool]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.place = Place(None)
        self.opening = asyncio.Lock()
        self._close = close
        self._abandon = abandon
        self._left = False
        self._gate = threading.Lock()
        self._watch: AsyncGenerator[None, None] | None = None

    @property
    def here(self) -> bool:
        """Whether the caller runs in the home loop."""
        return self.place.here

    def claim(self, *, for_longer: bool = False) -> bool:
        """Return whether the running event loop is the home, after making it the home if there is none."""
        here = running_loop()
        if here is None:
            raise BadInput(what="This process was forked inside a running event loop. Start a new one: asyncio.run(…)")
        with self._gate:
            if self.loop is not None and self.loop.is_closed():
                self.loop, self.place, self._left = None, Place(None), self._abandon()
            if self.loop is None and (for_longer or not self._left):
                self.loop, self.opening, self.place = here, asyncio.Lock(), Place(here)
            return self.loop is here

    async def settle(self) -> None:
        """Close what belongs to the running loop when the loop ends."""
        self._watch = self._until_the_loop_ends()
        await anext(self._watch)

    async def close(self) -> None:
        """Close what belongs to the home, if that is still possible, and leave the home."""
        loop = self.loop
        if loop is running_loop():
            await self._close()
        elif loop is not None and loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), loop))
            return
        else:
            self._abandon()
        await self.leave()

    async def leave(self) -> None:
        """Leave the home. The next call claims it again."""
        watch, self._watch = self._watch, None
        self.loop, self.place, self._left = None, Place(None), False
        if watch is not None:
            await watch.aclose()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self._watch is not None:  # it was not left before
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await self._close()
                self._abandon()
                self.loop, self.place, self._left, self._watch = None, Place(None), True, None


class Inherited(Protocol):
    """An object that a forked child must not use."""

    def forked(self) -> None: ...


_INHERITED: weakref.WeakSet[Any] = weakref.WeakSet()
_watching_forks = False


def watch_forks(thing: Inherited) -> None:
    """Call `forked` in every child that is forked from now on."""
    global _watching_forks
    if not _watching_forks:
        _watching_forks = True
        os.register_at_fork(after_in_child=_forked)
    _INHERITED.add(thing)


def _forked() -> None:
    for thing in list(_INHERITED):
        thing.forked()


def keep_for_ever(*things: object) -> None:
    """Never free objects that a forked child inherited, not even when the interpreter ends.

    To free them would remove the parent's sockets from the selector that both processes share.
    """
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))

"""The wire for blocking code: a `Wire` on a thread with its own event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from typing import Any, TypeVar

from keptwork.client.wire import Query, Wire
from keptwork.core.home_loop import keep_for_ever
from keptwork.core.loop_thread import Lane

T = TypeVar("T")


class SyncWire:
    """A blocking `Wire`.

    Any thread can call it, even one that runs an event loop. After a fork, the child opens its own connections.
    """

    def __init__(self, make: Callable[[], Wire]) -> None:
        self._make = make
        self._wire = make()
        self._lane: Lane | None = None
        self._process = os.getpid()
        self._gate = threading.Lock()

    def __repr__(self) -> str:
        return f"Sync{self._wire!r}"

    @property
    def server(self) -> str:
        """The URL of the server."""
        return self._wire.server

    def get(self, answer: type[T], path: str, query: Query | None = None, *, read_seconds: float | None = None) -> T:
        """Call `Wire.get`."""
        return self.run(lambda wire: wire.get(answer, path, query, read_seconds=read_seconds))

    def content(self, path: str, query: Query | None = None) -> bytes:
        """Call `Wire.content`."""
        return self.run(lambda wire: wire.content(path, query))

    def change(
        self,
        answer: type[T],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Query | None = None,
        **how: Any,
    ) -> T:
        """Call `Wire.change` with the same options."""
        return self.run(lambda wire: wire.change(answer, method, path, body, query, **how))

    def pages(self, item: type[T], field: str, path: str, query: Query | None = None) -> Generator[T, None, None]:
        """Call `Wire.pages`."""
        return self._iterated(lambda wire: wire.pages(item, field, path, query))

    def follow(
        self, item: type[T], path: str, query: Query | None = None, *, after: str | None = None
    ) -> Generator[T, None, None]:
        """Call `Wire.follow`."""
        return self._iterated(lambda wire: wire.follow(item, path, query, after=after))

    def run(self, ask: Callable[[Wire], Coroutine[Any, Any, T]]) -> T:
        """Run a call of the wire, wait for it, and return its result."""
        lane = self._entered()
        return lane.run(ask(self._wire))

    async def hand(self, ask: Callable[[Wire], Coroutine[Any, Any, T]]) -> T:
        """Do the same for a caller in an event loop, without blocking the loop."""
        lane = self._entered()
        return await lane.awaited(ask(self._wire))

    async def visited(self, path: str, query: Query | None, after: str | None) -> AsyncGenerator[Any, None]:
        """Yield the documents of a stream, for a caller in an event loop."""
        lane, end = self._entered(), object()
        source = self._wire.follow(object, path, query, after=after)

        async def following() -> Any:
            return await anext(source, end)

        try:
            while (one := await lane.awaited(following())) is not end:
                yield one
        finally:
            if not lane.closed:
                await lane.awaited(source.aclose())

    def close(self) -> None:
        """Close all connections. A later call opens new ones."""
        with self._gate:
            lane, self._lane = self._lane, None
        if lane is not None and self._process == os.getpid():
            lane.run(self._wire.close())
            lane.close()

    def _iterated(self, begin: Callable[[Wire], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        lane = self._entered()
        source, end = begin(self._wire), object()

        async def following() -> T | object:
            return await anext(source, end)

        try:
            while (one := lane.run(following())) is not end:
                yield one  # type: ignore[misc] # every value except the end is a T
        finally:
            if not lane.closed:
                lane.run(source.aclose())

    def _entered(self) -> Lane:
        with self._gate:
            if self._process != os.getpid():  # the thread and the connections belong to the parent
                keep_for_ever(self._lane, self._wire)
                self._lane, self._wire, self._process = None, self._make(), os.getpid()
            if self._lane is None:
                self._lane = Lane("keptwork-client")
            return self._lane

"""The server process: uvicorn with limits on headers and slow clients, and an orderly end of streams."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keptwork.errors import BadInput, HeadersTooLarge, KeptworkError, NotHttp, TooSlow
from keptwork.http import problems
from keptwork.http.rate_limit import Limits


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on the size and duration of headers, and on the time a client takes to read.

    uvicorn has no such limits: a client that sends a byte now and then, or reads nothing, would hold its connection
    permanently.
    """

    bounds = Limits()
    _header_timer: asyncio.TimerHandle | None = None
    _writing_timer: asyncio.TimerHandle | None = None
    _header_size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the base has it
        super().connection_made(transport)
        self._begin_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._header_timer is not None:  # the headers have not ended; a header without an end is never reported
            self._count(len(data))

    def send_400_response(self, msg: str) -> None:
        self._refuse(NotHttp(detail=msg))

    def on_message_begin(self) -> None:
        self._begin_headers()
        super().on_message_begin()

    def pause_writing(self) -> None:
        """Start a timer that aborts the connection if the client does not read its response."""
        super().pause_writing()
        self._writing_timer = self.loop.call_later(self.bounds.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_writing_timer()
        super().resume_writing()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_headers()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_headers()
        self._stop_writing_timer()
        super().connection_lost(exc)

    def _begin_headers(self) -> None:
        self._end_headers()
        self._header_size = 0
        self._header_timer = self.loop.call_later(self.bounds.header_seconds, self._too_slow)

    def _end_headers(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_writing_timer(self) -> None:
        if self._writing_timer is not None:
            self._writing_timer.cancel()
            self._writing_timer = None

    def _count(self, size: int) -> None:
        self._header_size += size
        if self._header_size > self.bounds.header_bytes:
            self._refuse(HeadersTooLarge(limit=self.bounds.header_bytes))

    def _too_slow(self) -> None:
        self._refuse(TooSlow(seconds=self.bounds.header_seconds))

    def _refuse(self, error: KeptworkError) -> None:
        """Respond instead of the application, which has not seen the request, and close the connection."""
        self._end_headers()
        if self.transport.is_closing():
            return
        answer = problems.response(error)
        head = [f"HTTP/1.1 {error.status} {error.title()}", "connection: close"]
        head += [f"{name.decode()}: {value.decode()}" for name, value in answer.raw_headers]
        self.transport.write("\r\n".join([*head, "", ""]).encode() + bytes(answer.body))
        self.transport.close()


class Server(uvicorn.Server):
    """A uvicorn server that signals its start, and ends streams before it waits for them."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.begun.set()

    def end(self, _: object = None) -> None:
        """Request the server to finish its requests and end."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without uvicorn's base class, which would send each signal to the process again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = getattr(getattr(self.config.app, "state", None), "stopping", None)
        if stopping is not None:
            stopping.set()
        await super().shutdown(sockets)


@contextmanager
def listening_on(host: str, port: int) -> Iterator[socket.socket]:
    """Open a socket that listens on this address. Raise `BadInput` if it is in use or not available."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol set, the event loop disables Nagle's algorithm, which could delay a part of a response
        # by 40 ms.
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
    except OSError as error:
        raise BadInput(what=f"cannot listen on {host} port {port}: {error.strerror}; choose --host or --port") from None
    with made:
        yield made


def server(app: FastAPI, host: str, port: int, **more: Any) -> Server:
    """Return a server of the application that has not started."""
    limits: Limits = app.state.limits
    protocol = type("Protocol", (BoundedProtocol,), {"bounds": limits})
    config = uvicorn.Config(
        app,
        host,
        port,
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=limits.shutdown_seconds,
        **more,
    )
    return Server(config)

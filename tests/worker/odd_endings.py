"""Handlers that end in every way the documentation lists. Also an application that a real worker runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import threading
import types
from collections.abc import Awaitable, Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from keptwork import Cancel, Context, Keptwork, PermanentError, Snooze, ValidationError

SOON = "200ms"
kept: list[FileIO] = []
gate = threading.Event()
"""Opened at the end of a test, so that handlers that swallow every cancellation end after all."""


@types.coroutine
def turn() -> Iterator[None]:
    """Give control to the event loop once, whichever process it is in."""
    yield


class Odd(BaseException): ...


def raising(error: BaseException) -> Callable[[Context], None]:
    def handler(ctx: Context) -> None:
        raise error

    return handler


def returning(value: Any) -> Callable[[Context], Any]:
    return lambda ctx: value


def virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


async def closes_loop(ctx: Context) -> None:
    asyncio.get_running_loop().close()


async def overruns(ctx: Context) -> None:
    await asyncio.sleep(3600)


async def swallows(ctx: Context) -> None:
    while not gate.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.02)


PLAIN: dict[str, Callable[[Context], Any]] = {
    "returns": returning(None),
    'returns `Snooze("1h")`': returning(Snooze("1h")),
    'returns `Cancel("not needed")`': returning(Cancel("not needed")),
    "returns a value that is not JSON": returning({1j}),
    "raises an exception": raising(ValueError("odd")),
    "raises `PermanentError`": raising(PermanentError("gone")),
    "raises `ValidationError`": raising(ValidationError("no url")),
    "raises a group with a `PermanentError`": raising(ExceptionGroup("several", [ValueError(), PermanentError()])),
    "raises `SystemExit`": raising(SystemExit(0)),
    "raises `KeyboardInterrupt`": raising(KeyboardInterrupt()),
    "raises `GeneratorExit`": raising(GeneratorExit()),
    "raises `CancelledError`": raising(asyncio.CancelledError()),
    "raises `MemoryError`": raising(MemoryError()),
    "raises another `BaseException`": raising(Odd("very")),
}
"""Each as an async handler and in a thread."""

ASYNC: dict[str, Callable[[Context], Awaitable[None]]] = {
    "closes the event loop": closes_loop,
    "exceeds its timeout": overruns,
    "swallows its cancellation at its timeout": swallows,
    "swallows its cancellation when asked to stop": swallows,
    "swallows its cancellation when its worker stops": swallows,
}

app = Keptwork()
REAL = {
    "forks a child that returns": "forks",
    "opens all file descriptors": "opens",
    "starts threads until it reaches the limit": "starts_threads",
    "cannot start its thread": "needs_thread",
    "stops the event loop": "stops_loop",
    "calls `os._exit`": "exits",
    "crashes, or runs out of memory and is killed": "crashes",
}
"""What only a process that belongs to the worker alone can be asked to bear."""


@app.job(backoff="1h", backoff_cap="1h")
async def forks(ctx: Context, sleeps: bool = False) -> int:
    child = os.fork()
    if not child:
        if sleeps:
            await turn()
            os.mkdir("child_went_on")
        return 1
    await asyncio.to_thread(os.waitpid, child, 0)
    return 2


@app.job(backoff="1h", backoff_cap="1h")
async def opens(ctx: Context) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    while True:
        kept.append(FileIO("/dev/null"))


@app.job(backoff="1h", backoff_cap="1h")
async def starts_threads(ctx: Context) -> None:
    used = virtual_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    threading.stack_size(16 << 20)
    while True:
        threading.Thread(target=gate.wait, daemon=True).start()


@app.job(backoff="1h", backoff_cap="1h", priority=-1)
def needs_thread(ctx: Context) -> None: ...


@app.job(lease="10m")
async def stops_loop(ctx: Context) -> int:
    if ctx.attempt == 1:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)
    return ctx.attempt


@app.job(lease="10m")
async def exits(ctx: Context) -> int:
    if ctx.attempt == 1:
        os._exit(0)
    return ctx.attempt


@app.job(lease="10m")
async def crashes(ctx: Context) -> int:
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.attempt


@app.job()
async def after(ctx: Context) -> None: ...


@app.job(backoff="1h", backoff_cap="1h", lease="10m")
async def in_a_task(ctx: Context, how: str) -> Any:
    return PLAIN[how](ctx)


@app.job(backoff="1h", backoff_cap="1h", lease="10m")
def in_a_thread(ctx: Context, how: str) -> Any:
    return PLAIN[how](ctx)


@app.job(backoff="1h", backoff_cap="1h", lease="10m", timeout=SOON)
async def out_of_time(ctx: Context, how: str) -> None:
    await ASYNC[how](ctx)

"""Handlers that another process can import, some of them with the worst of manners."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

from keptwork import Cancel, PermanentError, Snooze, TransientError, ValidationError
from keptwork.context import Context
from keptwork.errors import BadInput
from keptwork.process.frames import ASIDE, HEADER, receive
from keptwork.workers.isolation.handler_process import IsolatedContext
from keptwork.workers.tool_runner import ToolSpec, run_tool
from tests.process import programs


def nothing(ctx: Context) -> None: ...


def about(ctx: Context, *, of: str) -> dict[str, Any]:
    return {
        "of": of,
        "pid": os.getpid(),
        "job": ctx.job_id,
        "attempt": ctx.attempt,
        "token": ctx.fencing_token,
        "correlation": ctx.correlation_id,
        "trace": ctx.trace_id,
        "key": ctx.idempotency_key("get"),
        "asked": ctx.cancel_requested,
        "main": threading.current_thread() is threading.main_thread(),
    }


async def add(ctx: Context, a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


class Gone(PermanentError):
    pass


class Stubborn(Exception):
    """Cannot be pickled, and cannot be shown."""

    def __init__(self, one: int, other: int) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise RuntimeError("no")


def raises(ctx: Context, which: int) -> None:
    raise RAISED[which][0]


async def raises_async(ctx: Context, which: int) -> None:
    raise RAISED[which][0]


DEAD = ("dead_letter", "exhausted_retries", "exec")
RAISED: list[tuple[BaseException, tuple[str, str, str]]] = [
    (TransientError("busy"), DEAD),
    (ValidationError("no url"), ("dead_letter", "validation_failed", "input")),
    (PermanentError("gone\0"), ("fail", "PermanentError: gone\ufffd", "exec")),
    (Gone("for good"), ("fail", "Gone: for good", "exec")),
    (TimeoutError("its own"), ("dead_letter", "timeout", "exec")),
    (SystemExit(3), DEAD),
    (KeyboardInterrupt(), DEAD),
    (StopIteration("odd"), DEAD),
    (asyncio.CancelledError("own"), DEAD),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\udcff"), DEAD),
    (Stubborn(1, 2), DEAD),
    (ExceptionGroup("several", [ValueError(1)]), DEAD),
]


def says(ctx: Context, what: str) -> Any:
    return SAID[what]()


SAID = {
    "snooze": lambda: Snooze("1h"),
    "cancel": lambda: Cancel("nothing to do"),
    "huge": lambda: "x" * (17 << 20),
    "large": lambda: "x" * (15 << 20),
    "object": object,
    "nan": lambda: float("nan"),
    "vague": lambda: Snooze("soon"),
    "deep": lambda: functools.reduce(lambda inner, _: [inner], range(100_000), list[Any]()),
    "surrogate": lambda: "\udcff",
    "exit": lambda: os._exit(3),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "stray": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "hog": lambda: bytearray(400 << 20),
    "forged": lambda: _forge(b'{"returned":1,"raised":2}'),
    "garbage": lambda: _forge(b"cos\nsystem\n(S'true'\ntR."),
    "flood": lambda: sys.stderr.write("x" * 300_000 + "\n") and "flooded",
}


def _forge(answer: bytes) -> None:
    """Answers in the worker's own format, but nonsense."""
    (line,) = [number for number in programs.open_descriptors() if stat.S_ISSOCK(os.fstat(number).st_mode)]
    os.write(line, len(answer).to_bytes(4, "big") + answer)
    os._exit(0)


def spins(ctx: Context) -> int:
    """The first time."""
    while ctx.attempt == 1:
        pass
    return ctx.attempt


def holds_the_lock(ctx: Context, seconds: float) -> str:
    """The lock of the interpreter, for as long as one regular expression takes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        re.fullmatch(r"(a+)+b", "a" * 24)
    return "still mine"


def patient(ctx: Context, path: str) -> Cancel:
    Path(path).touch()
    while not ctx.cancel_requested:
        time.sleep(0.005)
    return Cancel("asked to stop")


async def patient_async(ctx: Context, path: str) -> Cancel:
    Path(path).touch()  # noqa: ASYNC240 - nobody else is on this loop
    while not ctx.cancel_requested:  # noqa: ASYNC110 - the way to ask
        await asyncio.sleep(0.005)
    return Cancel("asked to stop")


def deaf(ctx: Context, path: str) -> None:
    """Has started a process that fled, and listens to nobody."""
    programs.flee_and_wait(path)


async def tidy(ctx: Context, path: str) -> None:
    """Cleans up when it is stopped."""
    try:
        Path(path).touch()  # noqa: ASYNC240 - nobody else is on this loop
        await asyncio.Event().wait()
    finally:
        Path(path + ".tidy").touch()  # noqa: ASYNC240 - nobody else is on this loop


def once_deaf(ctx: Context, path: str) -> str:
    if not Path(path).exists():
        programs.flee_and_wait(path)
    return "done"


async def keeps(ctx: Context, size: int) -> str | None:
    """Artifacts from a process of its own: bytes, text and a file; what will not do is told here."""
    first = await ctx.keep("page.bin", bytes(range(256)) * (size // 256))
    await ctx.keep("note", "words")
    again = await ctx.keep("copy", bytes(range(256)) * (size // 256))
    assert first.hash == again.hash
    try:
        await ctx.keep("no/way", b"")
    except BadInput as refusal:
        return str(refusal)
    return None


def keeps_in_plain_code(ctx: Context, path: str) -> bool:
    ctx.keep("file.txt", Path(path))
    return ctx.cancel_requested


def asks_for_nonsense(ctx: IsolatedContext) -> str:
    """Not what `ctx.keep` says, but what any code in the process could."""
    talk = ctx._talk
    for wish in (b"", b"\xff", b"[1]\n", b'["a"]\nx', b'["../a","text/plain"]\nx', b'["a","nothing"]\nx'):
        talk.sendall(HEADER.pack(len(wish) + 1) + ASIDE + wish)
        reply = receive(talk)
        assert reply is not None
        assert "refused" in reply[0]
    return "survived"


async def uses_tools(ctx: Context) -> None:
    await run_tool(ctx, ToolSpec(("true",), "nothing"))


async def spawns(ctx: Context) -> None:
    await ctx.spawn("anything")


def _look_up(key: str) -> str:
    return {"a": "b"}[key]


async def looks_up(ctx: Context) -> None:
    try:
        await ctx.step("price", _look_up, "shoes")
    except KeyError as error:
        raise RuntimeError("no price") from error


def gives_away(ctx: Context) -> None:
    raise ValueError(f"with {os.environ['SHOP_API_KEY']}")


async def fails_together(ctx: Context, permanent: bool) -> None:
    late = TransientError("later")
    late.delay_us = 3_600_000_000  # type: ignore[attr-defined]  # read when the job is settled
    members = [ValueError("a"), PermanentError("b") if permanent else late]
    raise ExceptionGroup("together", members)


async def declined() -> None:
    async def charge() -> None:
        raise PermanentError("declined")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(charge())

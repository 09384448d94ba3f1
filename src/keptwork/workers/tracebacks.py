"""Format tracebacks and stacks for the log: the user's frames, without secrets, of bounded length.

jobs/outcome.py handles the error's message, which is stored with the job.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, walk_stack
from types import FrameType

from keptwork.agents.conversation import AgentFailure
from keptwork.core import secrets
from keptwork.errors import KeptworkError
from keptwork.jobs.outcome import members
from keptwork.outcomes import PermanentError, TransientError, ValidationError

LONGEST = 10_000
"""A log line of JSON with this many escaped characters still fits the pipe that a supervisor reads."""

DECLARED = (KeptworkError, PermanentError, TransientError, ValidationError, AgentFailure, TimeoutError)
"""Errors whose message is enough if none of the user's functions raised them."""

_OWN = str(Path(__file__).parents[1]) + "/"
_MACHINERY = tuple(
    str(Path(module.__file__ or "").parent if one_folder else module.__file__)
    for module, one_folder in ((asyncio, True), (concurrent.futures, True), (threading, False), (contextlib, False))
)
_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def traceback_of(error: BaseException) -> str | None:
    """Return the traceback with chained causes and group members, or None if the message already says everything."""
    try:
        told = TracebackException.from_exception(error, lookup_lines=False, compact=True)
        if _keep_users_frames(told) or not all(isinstance(one, DECLARED) for one in members(error)):
            return shown("".join(told.format()))
    except Exception:  # an exception can override the attributes that are read here
        return None
    return None


def stack_of(frame: FrameType | None) -> str | None:
    """Return the current stack of an event loop's thread, without the loop itself and without Keptwork's frames."""
    stack = list(StackSummary.extract(walk_stack(frame)))[::-1] if frame is not None else []
    starts = [at for at, one in enumerate(stack, 1) if (one.filename, one.name) == (asyncio.events.__file__, "_run")]
    frames = list(_users(stack[starts[-1] if starts else 0 :]))
    return (
        shown("Stack (most recent call last):\n" + "".join(StackSummary.from_list(frames).format())) if frames else None
    )


def shown(text: str) -> str:
    """Return a traceback for the log: without secrets, control characters, or unpaired surrogates.

    If it is too long, its middle is cut out.
    """
    clear = secrets.current().text(text).encode("utf-8", "replace").decode().translate(_CONTROL).rstrip()
    if len(clear) <= LONGEST:
        return clear
    half = LONGEST // 2
    return f"{clear[:half]}\n… {len(clear) - 2 * half:,} characters left out …\n{clear[-half:]}"


def _keep_users_frames(told: TracebackException) -> bool:
    """Leave out Keptwork's frames. Without a frame of the user's, keep them all and return False."""
    kept = [(one, list(_users(one.stack))) for one in _chain(told)]
    if not any(frames for _, frames in kept):
        return False
    for one, frames in kept:
        one.stack[:] = frames
    return True


def _chain(told: TracebackException) -> Iterator[TracebackException]:
    """Return the error with its causes, its contexts, and the members of its groups."""
    left, seen = [told], set[int]()
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other is not None]


def _users(frames: list[FrameSummary]) -> Iterator[FrameSummary]:
    """Leave out Keptwork's frames, and the library functions through which Keptwork calls the user's."""
    inside = False
    for frame in frames:
        inside = frame.filename.startswith(_OWN) or (inside and frame.filename.startswith(_MACHINERY))
        if not inside:
            yield frame

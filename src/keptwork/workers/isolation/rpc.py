"""Requests of a handler in its own process, which the worker executes under the job's lease.

A request is a line of JSON, followed by the content if there is any. The reply has the result or the reason for a
refusal. The worker knows which job the request is for, and trusts nothing that the process sends.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import check_name
from keptwork.errors import BadInput, LeaseLost, StoreError
from keptwork.jobs import outcome
from keptwork.jobs.outcome import (
    LARGEST_RESULT,
    LONGEST_TEXT,
    Raised,
    Release,
    Suspend,
    all_of,
    described,
    plain,
    result_text,
)
from keptwork.jobs.results_artifacts import LARGEST_ARTIFACT
from keptwork.outcomes import Cancel, PermanentError, Snooze, TransientError, ValidationError
from keptwork.process.frames import ASIDE, HEADER, STOP, receive
from keptwork.store import Artifact, Job
from keptwork.store.contract.checkpoints import Checkpoint, Save
from keptwork.workers.artifacts import Content, Done, checked_type, content_of
from keptwork.workers.tracebacks import LONGEST, shown, traceback_of

LARGEST_WISH = LARGEST_ARTIFACT + (1 << 16)
PAGE = 200
"""Checkpoints per reply. None of them is larger than a row allows."""


async def granted(context: Context, wish: bytes) -> dict[str, Any]:
    """Execute a request, in the worker, and return the reply."""
    try:
        head, _, content = wish.partition(b"\n")
        what, *said = json.loads(head)
        return {"done": await _GRANTED[what](context, content, *said)}
    except LeaseLost:
        return {"lost": True}
    except (BadInput, PermanentError, StoreError) as refusal:
        return {"refused": str(refusal)}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {"refused": "what was asked of the worker makes no sense"}


async def _keep(context: Context, content: bytes, name: str, media_type: str) -> Any:
    return await context.keep(str(name), content, str(media_type))


async def _recall(context: Context, content: bytes, start: int) -> Any:
    return list((await context.steps.before()).values())[start : start + PAGE]


async def _whole(context: Context, content: bytes, name: str) -> Any:
    return json.loads(await context.steps.whole(name))


async def _save(context: Context, content: bytes, name: str, code: str | None) -> Any:
    """Store a checkpoint. Return None, or the value that another run stored first."""
    check_name("step", name)
    if code is not None:
        check_name("digest of code", code)
    text = result_text(json.loads(content))
    stands = await context.steps.keep_text(name, text, code)
    return None if stands == text else [json.loads(stands)]


async def _changed(context: Context, content: bytes, name: str) -> Any:
    check_name("step", name)
    await context.steps.note_change(name)


async def _now(context: Context, content: bytes) -> Any:
    return await context.steps.now()


async def _tell(context: Context, content: bytes, fraction: float, text: str) -> Any:
    context.progress(fraction, str(text))


_GRANTED: dict[str, Callable[..., Awaitable[Any]]] = {
    "keep": _keep,
    "recall": _recall,
    "whole": _whole,
    "save": _save,
    "changed": _changed,
    "now": _now,
    "tell": _tell,
}


class Line:
    """The handler's end of the connection, in its process. It sends one request at a time, from any thread."""

    def __init__(self, talk: socket.socket, job: Job) -> None:
        self._talk = talk
        self._job = job
        self._turn = threading.Lock()
        self.stop_heard = False

    def ask(self, what: str, *said: Any, content: bytes = b"") -> Any:
        """Send a request and return its result. Raise `LeaseLost` if the job is no longer held."""
        wish = ASIDE + json.dumps([what, *said]).encode() + b"\n" + content
        with self._turn:
            self._talk.sendall(HEADER.pack(len(wish)) + wish)
            reply = self._reply()
        match reply:
            case {"done": done}:
                return done
            case {"refused": why}:
                raise BadInput(what=why)
        raise LeaseLost(lifecycle=JOB.name, id=self._job.public_id, trigger=what)

    def _reply(self) -> Any:
        """Read the reply. A stop request from the worker can precede it."""
        while self._talk.recv(1, socket.MSG_PEEK) == STOP:
            self._talk.recv(1)
            self.stop_heard = True
        received = receive(self._talk)
        return {} if received is None else received[0]


# Artifacts and checkpoints of a handler in its own process: every call is a request to the worker.
#
# Each call returns only after the worker has replied. Nothing here waits on the event loop, although async functions
# await it as they do in the worker.


T = TypeVar("T")


class DistantShelf:
    """Stores artifacts through the worker. In async functions too, `keep` has finished when it returns."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def keep(self, job: Job, name: str, data: Content, media_type: str | None) -> Done:
        chosen = checked_type(name, data, media_type)
        return Done(Artifact(*self._line.ask("keep", name, chosen, content=content_of(name, data))))


class DistantJournal:
    """Stores checkpoints through the worker."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @property
    def awaited(self) -> bool:
        """Whether the caller runs on an event loop, which in this process belongs to the handler."""
        return asyncio._get_running_loop() is not None

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(function)

    async def now(self) -> int:
        return int(self._line.ask("now"))

    async def recall(self, job: Job) -> list[Checkpoint]:
        found: list[Checkpoint] = []
        while page := self._line.ask("recall", len(found)):
            found += [Checkpoint(*one) for one in page]
            if len(page) < PAGE:
                break
        return found

    async def whole(self, job: Job, one: Checkpoint) -> str:
        return json.dumps(self._line.ask("whole", one.name))

    async def save(self, save: Save) -> str:
        """Store a checkpoint. The worker decides whether it is large enough to become a blob."""
        text = save.blob.content if save.blob is not None else save.result.encode()
        other = self._line.ask("save", save.name, save.code, content=text)
        return save.result if other is None else json.dumps(other[0])

    async def note_change(self, job: Job, name: str) -> None:
        self._line.ask("changed", name)

    def tell(self, job: Job, report: str) -> None:
        told = json.loads(report)
        self._line.ask("tell", told["fraction"], told["text"])


# Encode the outcome of a handler in its own process as JSON, and decode it in the worker without running anything.


LARGEST_ANSWER = LARGEST_RESULT + 16 * (LONGEST_TEXT + LONGEST)
LATEST_US = 1 << 60
MOST_WAITS = 10_000

# The exception classes that decide how a job is completed. The text names the original error.
_KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind for kind in (ValidationError, PermanentError, TimeoutError, MemoryError, TransientError)
}


def encoded(said: Any) -> bytes:
    """Return the outcome as JSON, in the handler's process. An outcome that JSON cannot hold becomes an error."""
    try:
        return _encoded(said)
    except Exception as error:
        return _raised(Raised(PermanentError(f"the handler returned what cannot be kept: {error}"), "output"))


def decoded(answer: bytes) -> Any:
    """Return the outcome, in the worker, which does not trust the process. An invalid answer becomes a `Raised`."""
    try:
        ((word, value),) = json.loads(answer).items()
        return _READ[word](value)
    except (BadInput, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Raised(TransientError("its process gave an answer that makes no sense"), "output")


def _encoded(said: Any) -> bytes:
    if isinstance(said, Raised):
        return _raised(said)
    if isinstance(said, Suspend):
        return json.dumps({"suspend": [[one.waits_for, one.until] for one in said.waits or (said,)]}).encode()
    if isinstance(said, Release):
        return json.dumps({"release": [said.reason, said.held_by]}).encode()
    if isinstance(said, Snooze):
        delay = said.delay.total_seconds() if isinstance(said.delay, timedelta) else said.delay
        return json.dumps({"snooze": delay}).encode()
    if isinstance(said, Cancel):
        return json.dumps({"cancel": str(said.reason)[:LONGEST_TEXT]}).encode()
    return b'{"returned":%s}' % result_text(said).encode()


def _raised(raised: Raised) -> bytes:
    error = raised.error
    told = [_kind(error), raised.stage, described(error), outcome.delay_us(error), traceback_of(error)]
    return json.dumps({"raised": told}).encode()


def _kind(error: BaseException) -> str:
    """Return the name of the class that completes the job as this error does."""
    if isinstance(error, ValidationError):
        return ValidationError.__name__
    if outcome.is_permanent(error):
        return PermanentError.__name__
    if outcome.is_timeout(error):
        return TimeoutError.__name__
    return MemoryError.__name__ if isinstance(error, MemoryError) else TransientError.__name__


def _read_raised(value: Any) -> Raised:
    kind, stage, text, delay_us, traceback = value
    error = _KINDS[kind]()
    if delay_us is not None:
        if type(delay_us) is not int or not 0 <= delay_us <= LATEST_US:
            raise ValueError("no delay")
        error.delay_us = delay_us  # type: ignore[attr-defined]  # read when the job is settled
    return Raised(error, str(stage), str(text), None if traceback is None else shown(str(traceback)))


def _read_suspend(value: Any) -> Suspend:
    """Return the waits of a job. Each time is one that both databases can store, or None for no limit."""
    waits = [Suspend(plain(str(waits_for)), until) for waits_for, until in value]
    for one in waits:
        if one.until is not None and (type(one.until) is not int or not 0 <= one.until <= LATEST_US):
            raise ValueError("no time")
    return all_of(waits[:MOST_WAITS])


def _read_release(value: Any) -> Release:
    reason, held_by = value
    if held_by is not None:
        check_name("hold", held_by)
    return Release(str(reason), held_by=held_by)


_READ: dict[str, Callable[[Any], Any]] = {
    "returned": lambda value: value,
    "suspend": _read_suspend,
    "release": _read_release,
    "snooze": Snooze,
    "cancel": lambda value: Cancel(str(value)),
    "raised": _read_raised,
}

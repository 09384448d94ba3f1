"""Requests of a handler in its own process, which the worker executes under the job's lease.

A request is a line of JSON, followed by the content if there is any. The reply has the result or the reason for a
refusal. The worker knows which job the request is for, and trusts nothing that the process sends.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import check_name
from keptwork.errors import BadInput, LeaseLost, StoreError
from keptwork.jobs.outcome import result_text
from keptwork.jobs.results_artifacts import LARGEST_ARTIFACT
from keptwork.outcomes import PermanentError
from keptwork.process.frames import ASIDE, HEADER, STOP, receive
from keptwork.store import Job

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

"""What a handler in a process of its own wants of the world: asked over its line, and done by the worker, which has the
lease.

A wish is a line of JSON that says what is wanted, then the content if there is any. The reply tells what came of it, or
why nothing did. Which job it is for is the worker's to know: nothing a process says is trusted.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from keptwork.bounds import check_name
from keptwork.errors import BadInput, LeaseLost, StoreError
from keptwork.lifecycle import JOB
from keptwork.outcomes import PermanentError
from keptwork.process.frames import ASIDE, HEADER, STOP, receive
from keptwork.service.artifacts import LARGEST_ARTIFACT
from keptwork.store import Job
from keptwork.worker.context import Context
from keptwork.worker.settlement import result_text

LARGEST_WISH = LARGEST_ARTIFACT + (1 << 16)
PAGE = 200
"""So many checkpoints come in one reply; none of them is larger than what a row holds."""


async def granted(context: Context, wish: bytes) -> dict[str, Any]:
    """In the worker."""
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
    """What stands in its place, if another run was first."""
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
    """The handler's end, in its process. One wish at a time, whichever thread it comes from."""

    def __init__(self, talk: socket.socket, job: Job) -> None:
        self._talk = talk
        self._job = job
        self._turn = threading.Lock()
        self.stop_heard = False

    def ask(self, what: str, *said: Any, content: bytes = b"") -> Any:
        """What came of a wish, once it has been granted; `LeaseLost` if the job is no longer held."""
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
        """The worker may have asked to stop before it replied."""
        while self._talk.recv(1, socket.MSG_PEEK) == STOP:
            self._talk.recv(1)
            self.stop_heard = True
        received = receive(self._talk)
        return {} if received is None else received[0]

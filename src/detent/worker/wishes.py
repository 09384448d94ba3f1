"""What a handler in a process of its own wants kept: asked over its line, and done by the worker, which has the lease.

A wish is a line of JSON, then the content. The reply tells of the artifact, or why there is none.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from detent.errors import BadInput, LeaseLost
from detent.lifecycle import JOB
from detent.process.frames import ASIDE, HEADER, STOP, receive
from detent.service.artifacts import LARGEST_ARTIFACT
from detent.store import Artifact, Job
from detent.worker.context import Context
from detent.worker.shelf import Content, Done, checked_type, content_of

LARGEST_WISH = LARGEST_ARTIFACT + (1 << 16)


async def kept(context: Context, wish: bytes) -> dict[str, Any]:
    """In the worker, where nothing a process says is trusted."""
    try:
        head, _, content = wish.partition(b"\n")
        name, media_type = json.loads(head)
        return {"kept": await context.keep(str(name), content, str(media_type))}
    except LeaseLost:
        return {"lost": True}
    except (ValueError, TypeError, RecursionError):
        return {"refused": "what was to be kept makes no sense"}
    except BadInput as refusal:
        return {"refused": str(refusal)}


class DistantShelf:
    """In the handler's process: `keep` has been done when it returns, in async functions too."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self.stop_heard = False

    def keep(self, job: Job, name: str, data: Content, media_type: str | None) -> Done:
        chosen = checked_type(name, data, media_type)
        wish = ASIDE + json.dumps([name, chosen]).encode() + b"\n" + content_of(name, data)
        self._talk.sendall(HEADER.pack(len(wish)) + wish)
        match self._reply():
            case {"kept": artifact}:
                return Done(Artifact(*artifact))
            case {"refused": why}:
                raise BadInput(what=why)
        raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="keep")

    def _reply(self) -> Any:
        """The worker may have asked to stop before it replied."""
        while self._talk.recv(1, socket.MSG_PEEK) == STOP:
            self._talk.recv(1)
            self.stop_heard = True
        received = receive(self._talk)
        return {} if received is None else received[0]

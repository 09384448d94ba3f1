"""The program of a handler's own process: what the zygote imports and what its child runs.

`ctx` works as it does in the worker. `ctx.cancel_requested` reads the connection to the worker when the handler checks
it, which needs no thread and no signal. SIGTERM raises `Terminated` in the main thread, so that `finally` and `with`
blocks run.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from keptwork.context import Context
from keptwork.core.function_ref import Target, load, unwrapped
from keptwork.jobs.outcome import Raised
from keptwork.observability import logs, spans
from keptwork.process.frames import HEADER, receive
from keptwork.process.resource_limits import use_reserve
from keptwork.store import Job
from keptwork.workers.isolation.rpc import DistantJournal, DistantShelf, Line, encoded
from keptwork.workers.process_exit import end_child
from keptwork.workers.steps import Steps, said_by

Function = Callable[..., Any]

_loaded: dict[Target, Function] = {}


class Terminated(SystemExit):
    """The process received SIGTERM."""


class IsolatedContext(Context):
    """A context that receives stop requests over the connection to the worker."""

    __slots__ = ("_line", "_talk", "run")

    def __init__(self, job: Job, talk: socket.socket, version: int) -> None:
        self._line = Line(talk, job)
        self.run = _Run()
        super().__init__(job, DistantShelf(self._line), Steps(job, DistantJournal(self._line), version, self.run))
        self._talk = talk

    @property
    def cancel_requested(self) -> bool:
        """Whether the handler should stop: the job was cancelled, or its lease was lost."""
        if not super().cancel_requested and not self._line.stop_heard:
            try:
                self._talk.recv(1, socket.MSG_DONTWAIT)
                self.request_stop()  # a stop byte, or the end of the connection
            except BlockingIOError:
                pass
        return super().cancel_requested or self._line.stop_heard


def prepare(what: Any) -> None:
    """Import the module of the function, once per process."""
    target = Target(*what["target"])
    if target not in _loaded:
        found = load(target)
        if what["database"] is not None and hasattr(found, "in_database"):
            found.in_database(what["database"])
        _loaded[target] = unwrapped(found)


def run(what: Any, talk: socket.socket) -> None:
    """Call the function with the received arguments and send its outcome."""
    signal.signal(signal.SIGTERM, _terminate)
    received = receive(talk)
    if received is not None:
        job = Job(*received[0])
        _log_as_its_worker_does(job)
        context = IsolatedContext(job, talk, what["version"])
        process = os.getpid()
        said = _said(_loaded[Target(*what["target"])], context, job.payload)
        end_child(process)
        answer = encoded(said)
        talk.sendall(HEADER.pack(len(answer)) + answer)


def _log_as_its_worker_does(job: Job) -> None:
    logs.job.set(job)
    logs.worker.set(job.owner)
    spans.ambient.set(job.trace_id)
    logs.like_parent()


class _Run:
    """The run of a handler on an event loop of its own."""

    work: asyncio.Task[Any] | None = None

    def abandon(self, said: Any) -> None:
        """Cancel again a handler that has not ended. Only the worker waits for this process."""
        if self.work is not None:
            self.work.cancel()


def _said(function: Function, context: IsolatedContext, payload: str) -> Any:
    try:
        called = function(context, **json.loads(payload))
        said = asyncio.run(_awaited(called, context)) if inspect.iscoroutine(called) else called
    except MemoryError as error:
        use_reserve()
        return Raised(error)
    except BaseException as error:
        said = said_by(error)
    return context.steps.settled(said)


async def _awaited(called: Coroutine[Any, Any, Any], context: IsolatedContext) -> Any:
    steps, context.run.work = context.steps, asyncio.current_task()
    said = await called
    return said if not steps.has_waits else await steps.parking.returned(said)


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated(f"{signal.Signals(number).name} came from outside")

"""Logging of Keptwork's processes to stderr, as text or as one line of JSON per record.

It uses Python's logging, with one handler at the root. A record created while a job runs carries the IDs of the job,
whether the worker or the handler creates it, in the event loop, a thread, or a process of its own. A record created
during an HTTP request carries the IDs of the request. Secrets are removed before a record is written.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from keptwork.core import ids
from keptwork.core.lifecycles import WORKER
from keptwork.errors import BadInput
from keptwork.observability import spans

if TYPE_CHECKING:
    from keptwork.store import Job

TEXT, JSON = "text", "json"
FORM, LEVEL = "KEPTWORK_LOG", "KEPTWORK_LOG_LEVEL"
LONGEST_MESSAGE = 20_000

job: ContextVar[Job | None] = ContextVar("keptwork_job", default=None)
"""The job whose handler runs here."""

worker: ContextVar[int | None] = ContextVar("keptwork_worker", default=None)
"""The worker that runs here."""

request: ContextVar[Mapping[str, Any] | None] = ContextVar("keptwork_request", default=None)
"""The current HTTP request: `request_id`, `tenant`, and `trace_id`."""

requests = logging.getLogger("keptwork.requests")
"""Receives a record of each request. It is enabled only for JSON output."""
requests.setLevel(logging.WARNING)


def form_wanted(given: str | None = None) -> str:
    """Return the log format: the given one, then that of the environment, then text."""
    wanted = given or os.environ.get(FORM) or TEXT
    if wanted not in (TEXT, JSON):
        raise BadInput(what=f"there is no form {wanted!r} to log in; --log and {FORM} know: {TEXT}, {JSON}")
    return wanted


@contextmanager
def to_stderr(form: str, handler: logging.Handler | None = None) -> Iterator[None]:
    """Log to stderr inside this block, and in the same format in child processes.

    For text, another handler can be given. If the application has log handlers of its own, only Keptwork's records are
    added as text.
    """
    root, ours = logging.getLogger(), logging.getLogger("keptwork")
    before = root.level, ours.level, os.environ.get(FORM)
    root.setLevel(_level(root.level))
    ours.setLevel(min(logging.INFO, root.level))
    os.environ[FORM] = form
    made = json_handler() if form == JSON else handler or text_handler()
    where = root if form == JSON or not root.handlers else ours
    silenced = _consoles(root) if form == JSON else []
    where.addHandler(made)
    requests.setLevel(logging.INFO if form == JSON else logging.WARNING)
    try:
        yield
    finally:
        where.removeHandler(made)
        root.handlers += silenced
        root.setLevel(before[0])
        ours.setLevel(before[1])
        requests.setLevel(logging.WARNING)
        os.environ.pop(FORM) if before[2] is None else os.environ.update({FORM: before[2]})


def _consoles(root: logging.Logger) -> list[logging.Handler]:
    """Remove and return the application's handlers that write to a terminal, which would mix with lines of JSON."""
    streams = (sys.stdout, sys.stderr)
    found: list[logging.Handler]
    found = [one for one in root.handlers if isinstance(one, logging.StreamHandler) and one.stream in streams]
    for one in found:
        root.removeHandler(one)
    return found


def _level(usual: int) -> int:
    """Return the level from which records of other loggers are written."""
    wanted = os.environ.get(LEVEL, "").strip().upper()
    if not wanted:
        return usual
    found = logging.getLevelNamesMapping().get(wanted)
    if found is None:
        raise BadInput(what=f"there is no level {wanted!r}; {LEVEL} is one of: debug, info, warning, error")
    return found


def json_handler() -> logging.Handler:
    """Return a handler that writes lines of JSON to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    return handler


def text_handler() -> logging.Handler:
    """Return a handler that writes text to stderr, with times in UTC."""
    handler = logging.StreamHandler()
    handler.setFormatter(Text("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
    return handler


def like_parent() -> None:
    """Configure logging in a child process as in its parent, if the parent configured it."""
    form, root = os.environ.get(FORM), logging.getLogger()
    if form == JSON:
        _consoles(root)
    if form == JSON or (form == TEXT and not root.handlers):
        root.addHandler(json_handler() if form == JSON else text_handler())
        root.setLevel(_level(root.level))


class Beside(logging.Handler):
    """Writes to the current value of sys.stderr.

    A live display on the terminal replaces sys.stderr and prints lines above itself. Lines written past it would damage
    the display.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def only_trouble_to_stderr() -> None:
    """Log only problems, for a command that shows the outcomes of steps itself. It does not show that the database is
    unreachable, that a handler does not end, or where a handler failed."""

    def is_trouble(record: logging.LogRecord) -> bool:
        return record.exc_text is not None or (record.levelno >= logging.WARNING and record.module != "report")

    handler = Beside()
    handler.setFormatter(Text("keptwork: %(message)s"))
    handler.addFilter(is_trouble)
    ours = logging.getLogger("keptwork")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)  # includes failed attempts that will be retried
    ours.propagate = False


def tell_traceback(
    logger: logging.Logger, level: int, message: str, *about: object, extra: Mapping[str, Any], traceback: str | None
) -> None:
    """Log a message with a traceback that is already text. Python's formatters put it below the message."""
    file, line, function, _ = logger.findCaller(stacklevel=3)
    record = logger.makeRecord(logger.name, level, file, line, message, about, None, function, extra)
    record.exc_text = traceback
    logger.handle(record)


# --- IDs


def about(one: Job) -> dict[str, Any]:
    """Return the IDs of a job, for a record created elsewhere: `extra={"keptwork": about(job)}`."""
    return {
        "job": one.public_id,
        "kind": one.kind,
        "attempt": one.attempts,
        "tenant": one.tenant_id,
        **spans.flow_of(one),
        "correlation": one.correlation_id,
        "trace": spans.trace_id(one.trace_id),
    }


def here() -> dict[str, Any]:
    """Return the IDs of the current worker, request, job, and span."""
    told: dict[str, Any] = {}
    if (who := worker.get()) is not None:
        told["worker"] = ids.public(WORKER.prefix, who)
    if (asked := request.get()) is not None:
        told |= {"request": asked.get("request_id"), "tenant": asked.get("tenant"), "trace": asked.get("trace_id")}
    if (running := job.get()) is not None:
        told |= about(running)
    if (place := spans.here()) is not None:
        told["trace"], told["span"] = place
    return told


def _ids(record: logging.LogRecord) -> dict[str, Any]:
    told = {**here(), **getattr(record, "keptwork", {})}
    return {name: value for name, value in told.items() if value is not None}


# --- formats


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cleared(record, record.getMessage()),
            **_ids(record),
        }
        if record.exc_info:
            line["error"] = _cleared(record, self.formatException(record.exc_info))
        elif record.exc_text:
            line["traceback"] = _cleared(record, record.exc_text)
        return json.dumps(line, default=str)


class Text(logging.Formatter):
    """Formats a record as text. A record of a job names the job, unless its message already does."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        said, running = super().format(record), job.get()
        named = running is None or running.public_id in said
        return _cleared(record, said if named or running is None else f"{said} ({running.public_id})")


def _cleared(record: logging.LogRecord, text: str) -> str:
    """Return the text without secrets and with limited length. Records of requests contain no secrets."""
    if record.name == requests.name:
        return text
    from keptwork.core.secrets import current

    return current().text(text)[:LONGEST_MESSAGE]

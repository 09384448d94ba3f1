"""`keptwork supervise`: run several workers of an application on this host, and replace those that die."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from typing import Annotated, Any

import typer

from keptwork.cli import screen, work_watch
from keptwork.cli.database import Db
from keptwork.cli.work import Grace, Lease, MaxMemory, Migrate, Queues, SupervisorTimeout, Target
from keptwork.core.durations import rfc3339, span_us
from keptwork.core.durations_sizes import size_bytes
from keptwork.observability import logs
from keptwork.workers.supervisor import Plan, Supervisor

log = logging.getLogger("keptwork")


def supervise(
    target: Target,
    workers: Annotated[int, typer.Option("--workers", min=1, max=1000, metavar="N", help="Number of workers.")] = 2,
    db: Db = None,
    queues: Queues = "",
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum concurrent jobs of each worker.")] = 32,
    lease: Lease = None,
    grace: Grace = "30s",
    max_memory: MaxMemory = None,
    supervisor_timeout: SupervisorTimeout = "60s",
    migrate: Migrate = False,
    log_form: work_watch.Log = None,
    as_json: screen.Json = False,
) -> None:
    """Run workers and replace those that die, with growing delays if they die at start.

    SIGTERM or Ctrl-C lets all workers finish their running jobs; a second signal kills the workers. SIGHUP restarts
    them one after another. With --json, each event is one line of JSON.

    Without --migrate, a missing or outdated database is rejected with exit code 2. If the database server is
    unreachable, the workers wait for it.
    """
    if max_memory is not None:
        size_bytes(max_memory)  # report an invalid size here, not in every worker
    options = {"--db": db, "--queues": queues, "--lease": lease, "--max-memory": max_memory}
    given = [part for name, value in options.items() if value for part in (name, value)]
    always = ["--grace", grace, "--supervisor-timeout", supervisor_timeout, "--concurrency", str(concurrency)]
    argv = [sys.executable, "-m", "keptwork", "work", target, *given, *always]
    plan = Plan(workers, [*argv, "--migrate"] if migrate else argv, span_us(grace), span_us(supervisor_timeout))
    # The workers log in the same format, which they read from the environment. The supervisor has no spans.
    with logs.to_stderr(logs.form_wanted(log_form), work_watch.console_handler()):
        replaced = asyncio.run(_run(plan, as_json))
    if not as_json:
        log.info("all workers have ended, %d had been replaced", replaced)


async def _run(plan: Plan, as_json: bool) -> int:
    supervisor = Supervisor(
        plan, _tell_json if as_json else _tell, _said_json if work_watch.shows_json(None) else _line_said
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.restart)
    shown = None
    if screen.stderr().is_terminal and not as_json and not work_watch.shows_json(None):
        shown = asyncio.create_task(work_watch.keep_up(supervisor.standing))
    try:
        return await supervisor.run()
    finally:
        if shown is not None:
            shown.cancel()
            await asyncio.wait([shown])


def _tell(event: str, message: str, **facts: Any) -> None:
    last = facts.get("last_words") or []
    about = {"keptwork": {"event": event, **facts}}
    log.log(logging.WARNING if last else logging.INFO, "%s", "\n  | ".join([message, *last]), extra=about)


def _tell_json(event: str, message: str, **facts: Any) -> None:
    at = rfc3339(time.time_ns() // 1000)
    print(json.dumps({"at": at, "event": event, "message": message, **facts}), flush=True)


def _line_said(place: int, line: str) -> None:
    """Print a line of a worker unchanged, after the number of the worker."""
    screen.stderr().print(f"[{place}] {line}", soft_wrap=True)


def _said_json(place: int, line: str) -> None:
    """Pass on JSON lines unchanged, and log all other output of a worker."""
    try:
        is_record = isinstance(json.loads(line), dict)
    except ValueError:
        is_record = False
    if is_record:
        print(line, file=sys.stderr, flush=True)
    else:
        log.info("%s", line, extra={"keptwork": {"place": place}})

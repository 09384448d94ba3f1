"""Run a tool once for a job: start it, follow its output, end it, and interpret its exit.

The output of a program that exits as expected becomes its result. Any other exit is a failure, and the output is stored
with the job as the artifacts `stdout` and `stderr`. Secrets are removed from the output before it is stored or shown.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

from keptwork.context import Context
from keptwork.core.durations import rfc3339
from keptwork.core.secrets import current
from keptwork.errors import BadInput
from keptwork.flows.steps.tool import ToolSpec, spec_of
from keptwork.observability import spans
from keptwork.outcomes import PermanentError, TransientError
from keptwork.process.output import Kept
from keptwork.process.pool import CageLost, Ending
from keptwork.process.tool import Command, NotStarted, Output
from keptwork.workers.artifacts import TEXT
from keptwork.workers.isolation.call import death

TELL_SECONDS = 0.25
LAST_LINES = 5


class Outcome(NamedTuple):
    """The outcome of a tool: a result, or a failure and whether to retry.

    `known` is whether the exit shows what the program did: a program that was killed can have done anything.
    """

    result: dict[str, Any] | None = None
    failure: str | None = None
    retry: bool = False
    known: bool = True


async def one_run(ctx: Context, spec: ToolSpec) -> Outcome:
    """Run the program. Raise `TimeoutError` if it exceeds its time limit."""
    output = Output(spec.most_output)
    began = time.monotonic()
    try:
        with spans.tool(spec.label) as span:
            async with _told(ctx, output):
                ending = await _ended(ctx, spec, output)
            spans.noted(span, process__exit__code=ending.code)
        outcome = _outcome(spec, ending, output, time.monotonic() - began)
    except (BadInput, NotStarted) as error:
        may_pass = isinstance(error, NotStarted) and error.may_pass
        return Outcome(failure=f"{spec.label} cannot be run: {error}", retry=may_pass)
    except CageLost as error:
        why = str(error) or "the process that watched over it is gone"
        outcome = Outcome(failure=f"{spec.label}: {why}", retry=spec.retry_on_failure, known=False)
    except TimeoutError:
        await _keep(ctx, output)
        raise
    if outcome.failure is not None:
        await _keep(ctx, output)
    return outcome


async def _ended(ctx: Context, spec: ToolSpec, output: Output) -> Ending:
    """Return how the program ended, after all its processes are gone."""
    running = asyncio.ensure_future(ctx.tools.run(_command(ctx, spec), output))
    ctx.pass_on_stop(lambda: _end(running))
    try:
        async with asyncio.timeout(spec.timeout_us / 1_000_000):
            return await running
    except TimeoutError:
        seconds = f"{spec.timeout_us / 1_000_000:g} s"
        raise TimeoutError(f"{spec.label} took longer than {seconds}{_last_words(output)}") from None
    except asyncio.CancelledError:
        if ctx.cancel_requested and not _is_being_cancelled():
            raise TransientError(f"{spec.label} was ended, as it was asked to stop") from None
        raise


def _end(running: asyncio.Future[Ending]) -> None:
    running.cancel()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _command(ctx: Context, spec: ToolSpec) -> Command:
    ours = {
        "KEPTWORK_JOB_ID": ctx.job_id,
        "KEPTWORK_IDEMPOTENCY_KEY": ctx.idempotency_key(spec.label),
        "KEPTWORK_FENCING_TOKEN": str(ctx.fencing_token),
        "KEPTWORK_CORRELATION_ID": ctx.correlation_id,
        "KEPTWORK_TRACE_ID": ctx.trace_id,
        "TRACEPARENT": ctx.traceparent,
    }
    known = {name: value for name, value in ours.items() if value is not None}
    return Command(spec.argv, {**spec.env, **known}, spec.cwd, spec.stdin, spec.limits)


def _outcome(spec: ToolSpec, ending: Ending, output: Output, seconds: float) -> Outcome:
    """Return what the exit of the program means. Pure."""
    if ending.code is None or ending.code < 0 or ending.why is not None:
        how = f"{spec.label}: {death(ending, spec.limits)}{_last_words(output)}"
        return Outcome(failure=how, retry=spec.retry_on_failure, known=False)
    if ending.code in spec.expected_exit_codes:
        return Outcome(_result(ending, output, seconds))
    expected = " or ".join(map(str, spec.expected_exit_codes))
    how = f"{spec.label} ended with exit code {ending.code}, not {expected}{_last_words(output)}"
    return Outcome(failure=how, retry=spec.retry_on_failure)


def _last_words(output: Output) -> str:
    cleared = current().text
    lines = output.stderr.last_lines(LAST_LINES, cleared) or output.stdout.last_lines(LAST_LINES, cleared)
    return f": {' | '.join(lines)}" if lines else ""


def _result(ending: Ending, output: Output, seconds: float) -> dict[str, Any]:
    cleared = current().text
    stdout = cleared(output.stdout.text)
    return {
        "stdout": stdout,
        "stderr": cleared(output.stderr.text),
        "exit_code": ending.code,
        "json": None if output.stdout.cut else parsed(stdout),
        "seconds": round(seconds, 6),
        "truncated": output.truncated,
        "stdout_truncated": bool(output.stdout.cut),
        "stderr_truncated": bool(output.stderr.cut),
    }


def parsed(text: str) -> Any:
    """Return the value of a JSON text, or None if it is not JSON or cannot be stored as such.

    >>> parsed('{"n": 1}'), parsed("n is 1"), parsed("1e999")
    ({'n': 1}, None, None)
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


async def _keep(ctx: Context, output: Output) -> None:
    cleared = current().content
    await ctx.keep("stdout", cleared(output.stdout.content), TEXT)
    await ctx.keep("stderr", cleared(output.stderr.content), TEXT)


# --- during the run


@asynccontextmanager
async def _told(ctx: Context, output: Output) -> AsyncIterator[None]:
    """Report the latest line of output from time to time. A short run reports nothing."""
    loop = asyncio.get_running_loop()
    latest, timer = output.stdout, None

    def tell() -> None:
        nonlocal timer
        timer = None
        for line in latest.last_lines(1, current().text):
            ctx.progress(0.0, line)

    def heard(kept: Kept) -> None:
        nonlocal latest, timer
        latest = kept
        if timer is None:
            timer = loop.call_later(TELL_SECONDS, tell)

    output.heard = heard
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


# Run a tool step, and require an approval before a tool with effects runs a second time.
#
# A tool with `idempotent: false` stores a checkpoint before it starts. If there is such a checkpoint without a stored
# exit, or with an exit that does not show its effects, a reviewer decides, because only a person can find out whether
# the tool took effect. The wait costs the job no attempt. The job can start more often than its tool, so the tool's
# attempts are counted here.


__all__ = ["ToolSpec", "reviewed", "run_tool", "spec_of"]

LONGEST_COMMAND = 2_000


async def run_tool(ctx: Context, spec: ToolSpec) -> dict[str, Any]:
    """Return the output of the program: `stdout`, `stderr`, `json`, `exit_code`, `seconds`, and `truncated`.

    `json` is the parsed stdout, or None. `stdout_truncated` and `stderr_truncated` name the truncated stream.

    An unexpected exit code raises `TransientError`, or `PermanentError` if a retry cannot help. A program that exceeds
    its time limit raises `TimeoutError`, and one that cannot be started `PermanentError`. If this call is cancelled, it
    ends the program and all its children.
    """
    outcome = await one_run(ctx, spec) if spec.idempotent else await reviewed(ctx, spec)
    if outcome.failure is not None:
        raise (TransientError if outcome.retry else PermanentError)(outcome.failure)
    return outcome.result or {}


async def reviewed(ctx: Context, spec: ToolSpec, name: str = "") -> Outcome:
    """Return the outcome of the single run of a program that is not idempotent.

    It runs again if a reviewer approves that, or if the last run is known to have failed and can be retried. In a job
    that runs several programs, each has a `name`.
    """
    of = f" {name}" if name else ""
    failures = 0
    for number in count(1):
        again = f" again ({number})" if number > 1 else ""
        fresh: list[int] = []
        since = await ctx.step(f"started{of}{again}", _mark, ctx, fresh)
        ended = f"ended{of}{again}"
        outcome = await (_kept_run(ctx, spec, ended) if fresh else _before(ctx, ended))
        if outcome is None or not outcome.known:
            how = None if outcome is None else outcome.failure
            details, asked = _details(spec, since, how), f"review{of}{again}" if name else None
            await ctx.wait_for_approval(_question(spec, since), by=spec.review_by, details=details, name=asked)
            continue
        failures += 1
        if not outcome.retry or failures >= spec.tries:
            return outcome._replace(retry=False)
        if fresh:
            return outcome
    raise AssertionError("counting has no end")


async def _mark(ctx: Context, fresh: list[int]) -> int:
    """Return the start time, by the database's clock."""
    fresh.append(await ctx.steps.now())
    return fresh[0]


async def _kept_run(ctx: Context, spec: ToolSpec, name: str) -> Outcome | None:
    return Outcome(**await ctx.step(name, _run, ctx, spec))


async def _run(ctx: Context, spec: ToolSpec) -> dict[str, Any]:
    """Run the program. After a time-out it can have done anything, like a program that was killed."""
    try:
        return (await one_run(ctx, spec))._asdict()
    except TimeoutError as error:
        return Outcome(failure=str(error), retry=True, known=False)._asdict()


async def _before(ctx: Context, name: str) -> Outcome | None:
    kept = await ctx.steps.recall(name)
    return None if kept is None else Outcome(**json.loads(kept.result))


def _question(spec: ToolSpec, since: int) -> str:
    return f"{spec.label} was started on {rfc3339(since)} and nobody knows whether it took effect. Run it again?"


def _details(spec: ToolSpec, since: int, how: str | None) -> dict[str, Any]:
    command = shlex.join(spec.argv)[:LONGEST_COMMAND]
    return {"command": command, "cwd": spec.cwd, "started_at": rfc3339(since), "ended": how}

"""Run a tool once for a job: start it, follow its output, end it, and interpret its exit.

The output of a program that exits as expected becomes its result. Any other exit is a failure, and the output is stored
with the job as the artifacts `stdout` and `stderr`. Secrets are removed from the output before it is stored or shown.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from keptwork.context import Context
from keptwork.core.secrets_redaction import current
from keptwork.errors import BadInput
from keptwork.flows.steps.tool_spec import ToolSpec
from keptwork.observability import spans
from keptwork.outcomes import TransientError
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

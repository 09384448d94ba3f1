"""Run a tool step, and require an approval before a tool with effects runs a second time.

A tool with `idempotent: false` stores a checkpoint before it starts. If there is such a checkpoint without a stored
exit, or with an exit that does not show its effects, a reviewer decides, because only a person can find out whether
the tool took effect. The wait costs the job no attempt. The job can start more often than its tool, so the tool's
attempts are counted here.
"""

from __future__ import annotations

import json
import shlex
from itertools import count
from typing import Any

from keptwork.context import Context
from keptwork.core.durations import rfc3339
from keptwork.flows.steps.tool_spec import ToolSpec, spec_of
from keptwork.outcomes import PermanentError, TransientError
from keptwork.workers.tool_runner import Outcome, one_run

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

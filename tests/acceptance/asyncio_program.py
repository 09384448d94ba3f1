"""A worker with twenty handlers written the way people write asyncio.

Usage: python -m tests.acceptance.asyncio_program URL LOG [TWIN]. LOG is a file to which each process appends a line of
JSON for what it sees: the context a run starts in, and each beginning and end of a step's function.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from keptwork import Keptwork, TransientError
from keptwork.context import Context
from keptwork.workers.parked_waits import Parking
from tests.acceptance.worker_program import die_with_the_test

FRESH = "nobody"
STEP_SECONDS = 0.02
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant of the soak", default=FRESH)

Handler = Callable[[Context, "Log"], Awaitable[Any]]


class Log:
    """What happened in a process, as far as the event log cannot tell: a line is written at one go."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, ctx: Context, what: str, **more: Any) -> None:
        line = {"what": what, "job": ctx.job_id, "epoch": ctx.fencing_token, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def entered(self, ctx: Context) -> None:
        """Note what an earlier job has left in this context, and leave something there."""
        task = asyncio.current_task()
        seen = [tenant.get(), decimal.getcontext().prec, task.get_name() if task else "", task and task.cancelling()]
        self.write(ctx, "context", seen=seen)
        tenant.set(ctx.job_id)
        decimal.getcontext().prec = 5
        if task is not None:
            task.set_name(f"task of {ctx.job_id}")

    def step(self, ctx: Context, name: str, result: Any = None) -> Any:
        async def work() -> Any:
            self.write(ctx, "begins", step=name)
            await asyncio.sleep(STEP_SECONDS)
            self.write(ctx, "ends", step=name)
            return name if result is None else result

        return ctx.step(name, work)


def event(ctx: Context) -> str:
    """The name of the event that only this job waits for."""
    return f"for {ctx.job_id}"


# --- the handlers: what each returns shows that it has waited


async def sequential(ctx: Context, log: Log) -> Any:
    await log.step(ctx, "one")
    await ctx.sleep("30ms")
    return [await ctx.wait_for_event(event(ctx)), await log.step(ctx, "two")]


async def gathers(ctx: Context, log: Log) -> Any:
    return (await asyncio.gather(ctx.wait_for_event(event(ctx)), log.step(ctx, "one"), log.step(ctx, "two")))[:2]


async def gathers_exceptions(ctx: Context, log: Log) -> Any:
    waits = asyncio.gather(ctx.wait_for_event(event(ctx)), log.step(ctx, "one"), return_exceptions=True)
    return await waits


async def task_groups(ctx: Context, log: Log) -> Any:
    async with asyncio.TaskGroup() as group:
        paid = group.create_task(log.step(ctx, "one"))
        told = group.create_task(ctx.wait_for_event(event(ctx)))
        group.create_task(ctx.sleep("20ms"))
    return [told.result(), paid.result()]


async def waits_for_all(ctx: Context, log: Log) -> Any:
    tasks = [asyncio.ensure_future(one) for one in (ctx.wait_for_event(event(ctx)), log.step(ctx, "one"))]
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def shields(ctx: Context, log: Log) -> Any:
    return [await asyncio.shield(ctx.wait_for_event(event(ctx))), await asyncio.shield(log.step(ctx, "one"))]


async def as_completed(ctx: Context, log: Log) -> Any:
    async def told() -> Any:
        return await ctx.wait_for_event(event(ctx))

    found = [await one for one in asyncio.as_completed([log.step(ctx, "one"), told()])]
    return sorted(found, key=lambda one: one == "one")


async def step_in_time(ctx: Context, log: Log) -> Any:
    async with asyncio.timeout(30):
        paid = await log.step(ctx, "one")
    return [await ctx.wait_for_event(event(ctx)), paid]


async def step_too_slow(ctx: Context, log: Log) -> Any:
    try:
        await asyncio.wait_for(ctx.step("slow", asyncio.sleep, 30), 0.01)
    except TimeoutError:
        return [await ctx.wait_for_event(event(ctx)), "late"]
    raise AssertionError("a step of 30 s took 10 ms")


async def watchdog(ctx: Context, log: Log) -> Any:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(5, task.cancel)  # and nobody disarms it
    return [await ctx.wait_for_event(event(ctx)), await log.step(ctx, "one")]


async def in_threads(ctx: Context, log: Log) -> Any:
    paid, told = await asyncio.gather(log.step(ctx, "one"), asyncio.to_thread(ctx.wait_for_event, event(ctx)))
    return [told, paid]


async def second_loop(ctx: Context, log: Log) -> Any:
    async def elsewhere() -> str:
        await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(5)))
        return tenant.get()

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == ctx.job_id
    return [await ctx.wait_for_event(event(ctx)), await log.step(ctx, "one")]


async def forks(ctx: Context, log: Log) -> Any:
    child = os.fork()
    if not child:
        os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    return [await ctx.wait_for_event(event(ctx)), await log.step(ctx, "one")]


async def leaves_a_task(ctx: Context, log: Log) -> Any:
    async def for_ever() -> None:
        with_job = tenant.get()
        for _ in range(200):
            await asyncio.sleep(0.01)
            assert tenant.get() == with_job

    _left.append(asyncio.create_task(for_ever()))
    del _left[:-50]
    return [await ctx.wait_for_event(event(ctx)), await log.step(ctx, "one")]


_left: list[asyncio.Task[None]] = []


async def swallows(ctx: Context, log: Log) -> Any:
    try:
        return await asyncio.gather(ctx.wait_for_event(event(ctx)), log.step(ctx, "one"))
    except asyncio.CancelledError:
        return "given up"


async def tidies_up(ctx: Context, log: Log) -> Any:
    try:
        return [await ctx.wait_for_event(event(ctx)), await log.step(ctx, "one")]
    finally:
        await log.step(ctx, "tidy")


async def fails_at_first(ctx: Context, log: Log) -> Any:
    paid = await log.step(ctx, "one")
    if ctx.attempt == 1:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
            raise TransientError("at first")
    return [await ctx.wait_for_event(event(ctx)), paid]


async def several_events(ctx: Context, log: Log) -> Any:
    late = ctx.wait_for_event(f"never {event(ctx)}", timeout="200ms")
    waits: list[Any] = [ctx.wait_for_event(event(ctx)), log.step(ctx, "one"), late]
    found = await asyncio.gather(*waits, return_exceptions=True)
    assert isinstance(found[2], TimeoutError), found
    return found[:2]


async def joins(ctx: Context, log: Log) -> Any:
    kids = await ctx.spawn_many("leaf", [{"n": n} for n in range(3)])
    grown, told = await asyncio.gather(ctx.join(kids, timeout="1h"), ctx.wait_for_event(event(ctx)))
    assert grown == [0, 1, 2], grown
    return [told, await log.step(ctx, "one")]


async def nested(ctx: Context, log: Log) -> Any:
    async def helper(name: str) -> Any:
        await asyncio.sleep(0.001)
        return await log.step(ctx, name)

    async def inner() -> Any:
        return await asyncio.gather(helper("one"), helper("two"))

    told, _ = await asyncio.gather(ctx.wait_for_event(event(ctx)), inner())
    return [told, "nested"]


HANDLERS: list[Handler] = [
    sequential,
    gathers,
    gathers_exceptions,
    task_groups,
    waits_for_all,
    shields,
    as_completed,
    step_in_time,
    step_too_slow,
    watchdog,
    in_threads,
    second_loop,
    forks,
    leaves_a_task,
    swallows,
    tidies_up,
    fails_at_first,
    several_events,
    joins,
    nested,
]


def declare(app: Keptwork, log: Log | None) -> list[str]:
    """Declare all kinds of jobs; the test that enqueues them needs no log. Returns the names of the handlers' kinds."""

    @app.job(name="leaf", max_attempts=1_000)
    def leaf(ctx: Context, n: int) -> int:
        time.sleep(0.005)
        return n

    for handler in HANDLERS:
        app.job(name=_name(handler), max_attempts=1_000, backoff="50ms")(_handled(handler, log))
    return [_name(handler) for handler in HANDLERS]


def _name(handler: Handler) -> str:
    return str(getattr(handler, "__name__", handler))


def _handled(handler: Handler, log: Log | None) -> Any:
    async def handled(ctx: Context) -> Any:
        assert log is not None
        log.entered(ctx)
        return await handler(ctx, log)

    return handled


# --- broken twins


def share_contexts() -> None:
    shared = contextvars.copy_context()
    slot: Any = sys.modules["keptwork.workers.slot"]
    slot._started = lambda work, variables, name, loop: loop.create_task(work, name=name, context=shared)


def cut_steps_off() -> None:
    class Nothing(set[Any]):
        def add(self, one: Any) -> None: ...

    made: Any = Parking.__init__

    def without_count(self: Any, owner: Any) -> None:
        made(self, owner)
        self._in_flight = Nothing()

    Parking.__init__ = without_count  # type: ignore[method-assign]


def take_waits_for_results() -> None:
    async def returns(self: Any, wait: Any, work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        from keptwork.workers.parked_waits import Suspended

        try:
            return await work(*arguments)
        except Suspended:
            return "not waited"

    Parking.operation = returns  # type: ignore[method-assign]


TWINS = {one.__name__: one for one in (share_contexts, cut_steps_off, take_waits_for_results)}


async def main(url: str, log: str, twin: str = "") -> None:
    if twin:
        TWINS[twin]()
    app = Keptwork(url)
    declare(app, Log(Path(log)))
    decimal.getcontext()
    async with app:
        await app.work(concurrency=16, lease="2s")


if __name__ == "__main__":
    threading.Thread(target=die_with_the_test, daemon=True).start()
    asyncio.run(main(*sys.argv[1:]))

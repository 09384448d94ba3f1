"""Run inline steps of a flow ahead, in the job of the step before them (an inline batch; see flows/inline_batch.py).

The worker decides without a lock, from the definition, the steps that it has run, and the states of other steps in the
database. The transaction that completes the batch checks whether all of it still holds.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any

from keptwork.context import Context
from keptwork.core import ids
from keptwork.core.function_ref import Target, load, unwrapped
from keptwork.flows import expression
from keptwork.flows.compiled import KINDS
from keptwork.flows.definition import INPUTS, Step
from keptwork.flows.inline_batch import MOST_AHEAD, MOST_TOGETHER, Carried, Stretch
from keptwork.flows.plan import Phase, Shape, looking, phases
from keptwork.flows.transaction import inputs_of, value_of
from keptwork.jobs.outcome import result_text
from keptwork.outcomes import PermanentError
from keptwork.store import Store

# Call the Python functions that steps of flows name, and return their outputs.


_NESTED = (dict, list)


async def called(ctx: Context, named: str, given: Mapping[str, Any]) -> Any:
    """Call the named function and return what it returns. If the first parameter of the function is called `ctx`, it
    receives the context and can store checkpoints of its own. A function that is not async runs in a thread of the
    worker. Nested arguments are copies, so a function cannot change what others receive."""
    function = function_of(named)
    arguments = [ctx] if takes_context(function) else []
    own = {name: deepcopy(value) if isinstance(value, _NESTED) else value for name, value in given.items()}
    bound = partial(function, *arguments, **own)
    if is_async(function):
        return await bound()
    return await ctx.steps.in_thread(bound)


is_async = lru_cache(maxsize=1_000)(inspect.iscoroutinefunction)
"""Whether to await a call of the function. Cached, because the check takes as long as many a function."""


@lru_cache(maxsize=1_000)
def takes_context(function: Callable[..., Any]) -> bool:
    """Return whether the function takes a context. Some built-in functions have no signature; they take none."""
    try:
        return next(iter(inspect.signature(function).parameters), None) == "ctx"
    except ValueError:
        return False


@lru_cache(maxsize=1_000)
def function_of(named: str) -> Callable[..., Any]:
    """Return the function of that name. Only successful lookups are cached."""
    module, _, name = named.partition(":")
    try:
        found = unwrapped(load(Target(module, name)))
    except ModuleNotFoundError as error:
        raise PermanentError(f"{named} cannot be called: {error}; is its folder on PYTHONPATH?") from None
    except AttributeError:
        raise PermanentError(f"{named} cannot be called: the module {module} has no {name}") from None
    if not callable(found):
        raise PermanentError(f"{named} cannot be called: it is no function")
    return found


def output_of(said: Any) -> dict[str, Any]:
    """Return the output of a step as a dict. A value that is not a dict is stored under `value`."""
    return said if isinstance(said, dict) else {"value": said}


SLICE_US = 10_000
PATIENCE_SECONDS = 1.0
MOST_BYTES = 1 << 20


class Ahead:
    """One inline batch.

    It ends when no other step can run here, or when its outputs should be stored: after a number of steps or bytes, or
    after a time.
    """

    def __init__(self, store: Store, ctx: Context, flow: str, shape: Shape, name: str, output: dict[str, Any]) -> None:
        self._store = store
        self._ctx = ctx
        self._flow = flow
        self._key = (ids.key_of(flow) or ("", 0))[1]
        self._shape = shape
        self._kind = KINDS[shape.flow.kind]
        self._began = self._ended = _now_us()
        self._name = name
        self._output = output
        self._outputs: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._satisfied = {name}
        self._not_yet: set[str] = set()
        self._in_the_way: dict[str, str] = {}
        self._done: list[tuple[str, str, int, int]] = []
        self._under_way = ""
        self._task: asyncio.Task[None] | None = None
        self._given_up = False
        self._alone: set[str] = set()
        self._bytes = 0

    async def gone(self, along: Sequence[str], careful: int) -> Stretch:
        """Run what can run here and return the batch.

        The steps in `along`, which started with this step, come first, but only under the first claim of the job. Their
        successors follow. While `careful` is above 0, this step completes alone, and the count falls by one.
        """
        if careful:
            return Stretch(self._output, along=tuple(along), careful=careful - 1)
        with_it = () if self._ctx.fencing_token else along
        try:
            text = self._outputs[self._name] = result_text(self._output)
            # what other steps do to it from here on does not change the output of this step
            self._output = json.loads(text)
            in_time = await self._carry_out(with_it)
        # the output itself cannot be stored, which is reported on completion; or the database is down
        except Exception:
            in_time = True
        handed = self._ended
        return Stretch(
            self._output,
            handed - self._began,
            tuple(Carried(name, text, handed - ended, took) for name, text, ended, took in self._done),
            tuple(along),
            frozenset(self._alone),
            MOST_TOGETHER if in_time else max(1, len(self._done)),
        )

    async def _carry_out(self, along: Sequence[str]) -> bool:
        """Run steps until the time is up or no step is left. Return False if the time ended the batch.

        The steps run in a task of their own. What a function does to its task does not affect the job. A function that
        takes far too long, or that ignores its cancellation, is not waited for.
        """
        self._task = task = asyncio.create_task(self._go_through(along))
        try:
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        finally:
            if not task.done():
                self._given_up = True
                task.cancel()
                task.add_done_callback(_pass_over)
        if not task.done():
            self._alone.add(self._under_way)
            return False
        task.result()
        return self._in_time()

    async def _go_through(self, along: Sequence[str]) -> None:
        self._not_yet.update(along)
        waiting = deque(along)
        waiting.extend(await self._ready_after(self._name))
        while waiting and self._may_go_on():
            self._under_way = name = waiting.popleft()
            if await self._carried(name) and self._shape.after[name]:
                waiting.extend(await self._ready_after(name))

    def _may_go_on(self) -> bool:
        enough = len(self._done) >= MOST_AHEAD or self._bytes > MOST_BYTES or self._given_up
        return not enough and self._in_time() and not self._ctx.cancel_requested

    def _in_time(self) -> bool:
        return self._ended - self._began < SLICE_US

    async def _carried(self, name: str) -> bool:
        """Call the function of a step and return whether it succeeded.

        An error is not reported here: the step then gets a job of its own and fails there.
        """
        step, began = self._shape.steps[name], max(_now_us(), self._ended)
        try:
            if takes_context(function_of(step.call or "")):
                raise LookupError("it wants a job of its own")
            given = await self._filled(step) if expression.texts(step.with_) else step.with_
            text = result_text(output_of(await called(self._ctx, step.call or "", given)))
        except (Exception, SystemExit, BaseExceptionGroup):
            self._alone.add(name)
            return False
        except asyncio.CancelledError:
            if self._given_up:
                raise
            self._alone.add(name)  # the function raised this itself
            return False
        finally:
            self._ended = max(_now_us(), began + 1)
            if self._task is not None and self._task.cancelling():
                await _forget_cancelling(self._task)
        if self._given_up:
            return False
        self._outputs[name] = text
        self._satisfied.add(name)
        self._bytes += len(text)
        self._done.append((name, text, self._ended, self._ended - began))
        return True

    # --- arguments

    async def _filled(self, step: Step) -> dict[str, Any]:
        """Return the arguments with every reference filled in."""
        roots = {one.root for one in expression.references(step.with_)}
        await self._look_up(roots - self._values.keys())
        filled: dict[str, Any] = expression.filled(step.with_, looking(self._values, cut=step.takes_cut))
        return filled

    async def _look_up(self, roots: Iterable[str]) -> None:
        """Read the outputs of steps as other steps would read them: after a round trip through JSON."""
        missing = []
        for root in roots:
            if root in self._outputs:
                self._values[root] = json.loads(self._outputs[root])
            elif root in self._shape.steps:
                missing.append(root)
        if missing:
            for output in await self._store.outputs(self._key, sorted(missing)):
                self._values[output.name] = await value_of(self._store, self._ctx.tenant_id, self._kind, output)
        if INPUTS not in self._values and any(root in (INPUTS, "flow") for root in roots):
            (row,) = await self._store.rows(self._kind.flow, [self._key], ("name", "inputs"))
            self._values |= {INPUTS: inputs_of(row), "flow": {"id": self._flow, "name": row["name"]}}

    # --- successors

    async def _ready_after(self, name: str) -> list[str]:
        """Return the inline steps that are ready now that this step is done.

        Steps with a condition are left to the engine.
        """
        steps, found = self._shape.steps, []
        for later in self._shape.after[name]:
            if steps[later].inline and steps[later].when is None and await self._is_ready(later):
                found.append(later)
                self._not_yet.add(later)
        return found

    async def _is_ready(self, name: str) -> bool:
        """Return whether all predecessors of a step are satisfied.

        Predecessors outside this batch are read from the database. The first unsatisfied predecessor is remembered,
        because a step can wait for thousands of others.
        """
        earlier = self._in_the_way.get(name)
        if earlier is not None and earlier not in self._satisfied:
            return False
        unknown = []
        for one in self._shape.before[name]:
            if one in self._satisfied:
                continue
            if one in self._not_yet:
                self._in_the_way[name] = one
                return False
            unknown.append(one)
        if unknown:
            await self._look_at(unknown)
            return await self._is_ready(name)
        return True

    async def _look_at(self, names: Sequence[str]) -> None:
        meaning = phases(self._kind.step)
        rows = await self._store.steps(self._key, names=names)
        self._satisfied |= {row["name"] for row in rows if meaning[row["state"]] is Phase.SATISFIED}
        self._not_yet.update(names)


async def _forget_cancelling(task: asyncio.Task[Any]) -> None:
    """Clear the cancellation that a function requested for its task, so that it does not reach the next function.

    The function can have returned before the cancellation was delivered.
    """
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()


def _pass_over(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of an abandoned task, so that asyncio does not log it as unhandled."""
    if not task.cancelled():
        task.exception()


def _now_us() -> int:
    return time.monotonic_ns() // 1_000

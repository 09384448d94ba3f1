"""Going ahead: inline steps that a job carries out after its own, to be handed in with it (service/stretch.py).

The worker decides by what it knows, without a lock: the definition, what it has carried out itself, and what the
database says of other steps. Whether all that still holds is looked at when it is handed in.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from keptwork import ids
from keptwork.flow import expression
from keptwork.flow.definition import INPUTS, Step
from keptwork.flow.phase import Phase, phases
from keptwork.flow.plan import looking
from keptwork.flow.shape import Shape
from keptwork.service.definitions import KINDS
from keptwork.service.flow_scene import inputs_of, value_of
from keptwork.service.stretch import MOST_AHEAD, MOST_TOGETHER, Carried, Stretch
from keptwork.store import Store
from keptwork.worker.called import called, function_of, output_of, takes_context
from keptwork.worker.context import Context
from keptwork.worker.settlement import result_text

SLICE_US = 10_000
PATIENCE_SECONDS = 1.0
MOST_BYTES = 1 << 20


class Ahead:
    """One stretch: it ends when nothing more can be carried out here, or when what came of it should be kept: after so
    many steps, so many bytes, so much time."""

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
        """Carries out what can be: first those that began with the step, under the first claim of its job, then what
        comes after any of them. So many steps as are to go one by one, this one among them, go alone."""
        if careful:
            return Stretch(self._output, along=tuple(along), careful=careful - 1)
        with_it = () if self._ctx.fencing_token else along
        try:
            text = self._outputs[self._name] = result_text(self._output)
            self._output = json.loads(text)  # what others do to it from here on is not what came of the step
            in_time = await self._carry_out(with_it)
        except Exception:  # what came of the step itself cannot be kept, which will be told; or the database is away
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
        """Until the time is over, or nothing is left; true if it was not the time that ended it. In a task of its own:
        what a function does to its task it does not do to the job, and one that takes far too long, or does not end
        when it is asked to, is not waited for."""
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
        """Calls the function of a step. Whatever is wrong with it shows again when a job of its own does."""
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
            self._alone.add(name)  # nobody has cancelled anything: the function said so
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

    # --- what it takes

    async def _filled(self, step: Step) -> dict[str, Any]:
        """The arguments, with every reference filled in."""
        roots = {one.root for one in expression.references(step.with_)}
        await self._look_up(roots - self._values.keys())
        filled: dict[str, Any] = expression.filled(step.with_, looking(self._values, cut=step.takes_cut))
        return filled

    async def _look_up(self, roots: Iterable[str]) -> None:
        """What came of steps, as the database gives it to others: what was JSON once."""
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

    # --- what comes next

    async def _ready_after(self, name: str) -> list[str]:
        """The inline steps that wait for nothing any longer now that this one is done. What has a condition is left to
        the engine."""
        steps, found = self._shape.steps, []
        for later in self._shape.after[name]:
            if steps[later].inline and steps[later].when is None and await self._is_ready(later):
                found.append(later)
                self._not_yet.add(later)
        return found

    async def _is_ready(self, name: str) -> bool:
        """By what is known here, or, of steps that this stretch has nothing to do with, in the database. The first that
        is in the way is remembered: a step may wait for thousands."""
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
    """A function that has cancelled the task it ran in, and may have ended before it could notice, has done so for
    itself and not for the next one."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()


def _pass_over(task: asyncio.Task[None]) -> None:
    """Whatever came of it is of no use any more."""
    if not task.cancelled():
        task.exception()


def _now_us() -> int:
    return time.monotonic_ns() // 1_000

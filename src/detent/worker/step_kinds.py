"""The built-in kinds of jobs: those that carry out the steps of flows. Every worker has them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from detent import ids
from detent.agent.model import Model, OfflineModel
from detent.flow import expression
from detent.flow.definition import Step
from detent.flow.expression import Wrong
from detent.flow.plan import looking
from detent.job_type import JobType
from detent.moments import span_us
from detent.outcomes import PermanentError, ValidationError
from detent.service.definitions import KINDS, shape
from detent.service.flow_scene import content, inputs_of
from detent.service.step_jobs import EXECUTED, PREFIX
from detent.store import Store
from detent.target import Target, load, unwrapped
from detent.worker.context import Context

RUN_BACKOFF_US, LONGEST_BACKOFF_US = 2_000_000, 300_000_000


@dataclass(frozen=True, slots=True)
class Task:
    """A step to be carried out: its definition with every reference filled in."""

    flow: str
    kind: str
    step: Step
    name: str


Carry = Callable[[Context, Task], Awaitable[Any]]


class StepKinds:
    """Carries out steps, each kind in its own way."""

    def __init__(self, opened: Callable[[], Awaitable[Store]], model: Model | None = None) -> None:
        self._opened = opened
        self._model = model or OfflineModel()
        self._ways: dict[str, Carry] = {"call": call, "agent": self._ask}

    def job_types(self) -> dict[str, JobType]:
        """By name, as the worker looks them up."""
        names = [f"{PREFIX}{kind}" for kind in EXECUTED if kind in self._ways]
        return {name: JobType.of(self._carry_out, name=name, on_exhausted="fail") for name in names}

    async def _carry_out(self, ctx: Context, flow: str, template: int, step: str, item: Any = None) -> Any:
        try:
            task = await self._task(ctx, flow, template, step, item)
        except Wrong as error:
            raise PermanentError(str(error)) from None
        try:
            async with asyncio.timeout(_seconds(task)):
                return _output(await self._ways[task.step.kind](ctx, task))
        except (PermanentError, ValidationError):
            raise
        except Exception as error:
            if delay := _delay_us(task, ctx.attempt):
                error.delay_us = delay  # type: ignore[attr-defined]  # read when the job is settled
            raise

    async def _task(self, ctx: Context, flow: str, template: int, name: str, item: Any) -> Task:
        store = await self._opened()
        whole = await shape(store, ctx.tenant_id, template)
        step, kind = whole.steps[name.partition("[")[0]], whole.flow.kind
        references = list(step.references)
        if references:
            values = await self._values(store, ctx.tenant_id, flow, kind, {one.root for one in references})
            step = _filled(step, looking(values, item))
        return Task(flow, kind, step, name)

    async def _values(self, store: Store, tenant_id: int, flow: str, kind: str, roots: set[str]) -> dict[str, Any]:
        """What the references of a step lead to. What came of earlier steps does not change any more."""
        key = (ids.key_of(flow) or ("", 0))[1]
        values: dict[str, Any] = {
            output.name: await content(store, tenant_id, output) for output in await store.outputs(key, sorted(roots))
        }
        (row,) = await store.rows(KINDS[kind].flow, [key], ("name", "inputs"))
        return {**values, "inputs": inputs_of(row), "flow": {"id": flow, "name": row["name"]}}

    async def _ask(self, ctx: Context, task: Task) -> dict[str, Any]:
        """One question to a model. The reply is kept: it is not asked again after a crash."""
        prompt, tier = expression.as_text(task.step.agent), task.step.tier or "haiku"
        reply: dict[str, Any] = await ctx.step("reply", partial(_replied, self._model, prompt, tier))
        return reply


async def _replied(model: Model, prompt: str, tier: str) -> dict[str, Any]:
    return (await model.reply(prompt, tier))._asdict()


async def call(ctx: Context, task: Task) -> Any:
    """A Python function with the arguments of `with`. One whose first parameter is called ctx gets the context, and can
    keep checkpoints of its own; one that is not async runs in a thread."""
    function = _function(task.step.call or "")
    arguments = [ctx] if _takes_context(function) else []
    bound = partial(function, *arguments, **task.step.with_)
    if inspect.iscoroutinefunction(function):
        return await bound()
    return await asyncio.to_thread(bound)


@lru_cache(maxsize=1_000)
def _takes_context(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), None) == "ctx"


def _function(named: str) -> Callable[..., Any]:
    module, _, name = named.partition(":")
    try:
        return unwrapped(load(Target(module, name)))
    except ModuleNotFoundError as error:
        raise PermanentError(f"{named} cannot be called: {error}; is its folder on PYTHONPATH?") from None
    except AttributeError:
        raise PermanentError(f"{named} cannot be called: the module {module} has no {name}") from None


def _filled(step: Step, look: expression.Look) -> Step:
    """The step with every reference replaced by its value; what it then says was checked only where it is used."""
    said = step.model_dump(exclude={"id", "when", "depends_on", "description", "for_each"}, exclude_unset=True)
    return step.model_copy(update=expression.filled(said, look))


def _output(said: Any) -> Any:
    """What came of a step always has names: what has none is called `value`."""
    return said if isinstance(said, dict) else {"value": said}


def _seconds(task: Task) -> float | None:
    """How long a call may take; tools watch their own time, to end what they have started."""
    limited = task.step.timeout is not None and task.step.kind in ("call", "agent")
    return span_us(task.step.timeout or 0) / 1_000_000 if limited else None


def _delay_us(task: Task, attempt: int) -> int | None:
    """How long to wait before the next attempt, where the flow says so: in a run 2^attempts times its base."""
    if task.step.backoff is None and task.kind != "run":
        return None
    base = RUN_BACKOFF_US if task.step.backoff is None else span_us(task.step.backoff)
    return min(base << min(attempt if task.kind == "run" else attempt - 1, 20), LONGEST_BACKOFF_US)

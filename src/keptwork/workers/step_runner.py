"""The built-in kinds of jobs that run the steps of flows. Every worker has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from keptwork.agents.commands import USUAL_BASE_MS, USUAL_RETRIES, described
from keptwork.agents.conversation import Provider
from keptwork.agents.engine import AGENT_KIND
from keptwork.agents.runner import AgentWork, Wish
from keptwork.agents.turn import Heard, Lineups
from keptwork.context import Context
from keptwork.core import ids
from keptwork.core.durations import span_us
from keptwork.core.lifecycles import JOB
from keptwork.core.money import micros
from keptwork.core.validation import OWN_KINDS
from keptwork.errors import BadInput, FlowKeyReused, KeptworkError, NotApproved, NotFound
from keptwork.flows import commands as flows
from keptwork.flows import expression, start
from keptwork.flows.compiled import KINDS, shape
from keptwork.flows.definition import Step
from keptwork.flows.expression import Wrong
from keptwork.flows.inline_batch import MOST_AHEAD
from keptwork.flows.plan import NO_ITEM, filled_step, looking
from keptwork.flows.steps.crew import SHARE
from keptwork.flows.steps.kind import DEATHS, EXECUTED, retries_of
from keptwork.flows.transaction import Actor, inputs_of, value_of
from keptwork.job import JobType
from keptwork.jobs import outcome
from keptwork.jobs.breaker import Breaker
from keptwork.jobs.schedules import START, flow_key
from keptwork.outcomes import PermanentError, TransientError, ValidationError
from keptwork.store import EventFilter, Store
from keptwork.store.contract.queues import SCHEDULER
from keptwork.workers.inline_runner import Ahead, called, output_of
from keptwork.workers.tool_runner import run_tool, spec_of

if TYPE_CHECKING:
    from keptwork.settings import Config


RUN_BACKOFF_US, LONGEST_BACKOFF_US = 2_000_000, 300_000_000
MOST_EVENTS = 1_000
TASK = ("flow", "template", "step", "item", "again")
"""Arguments of a step's job that describe the step. The others concern an inline batch."""


@dataclass(frozen=True, slots=True)
class Task:
    """A step to run: its definition with references resolved, and its attempts.

    `again` is whether an earlier round of the flow has started it. `written` is the text for an agent as the flow's
    file has it.
    """

    flow: str
    kind: str
    step: Step
    name: str
    again: bool = False
    tries: int = 1
    written: str = ""


Carry = Callable[[Context, Task], Awaitable[Any]]


class StepKinds:
    """Runs steps, each kind in its own way."""

    def __init__(
        self,
        opened: Callable[[], Awaitable[Store]],
        config: Callable[[], Config] | None = None,
        provider: Provider | None = None,
        heard: Heard | None = None,
    ) -> None:
        self._opened = opened
        self._config = cache(config or _read_config)
        self._agents = AgentWork(Lineups(self._config, provider), heard)
        self._ways: dict[str, Carry] = {"tool": self._run, "command": self._run, "call": call, "agent": self._ask}

    def job_types(self) -> dict[str, JobType]:
        """Return the kinds by name, for the worker."""
        names = [f"{OWN_KINDS}{kind}" for kind in EXECUTED]
        kinds = {name: JobType.of(self._carry_out, name=name, on_exhausted="fail") for name in names}
        own: dict[str, Callable[..., Any]] = {AGENT_KIND: self._agent, SHARE: self._share}
        return {**kinds, **{name: JobType.of(work, name=name, on_exhausted="fail") for name, work in own.items()}}

    async def _agent(
        self,
        ctx: Context,
        description: str | None = None,
        skill: str | None = None,
        tier: str | None = None,
        schema: dict[str, Any] | None = None,
        max_retries: int = USUAL_RETRIES,
        retry_base_ms: int = USUAL_BASE_MS,
        budget_micros: int | None = None,
        **step: Any,
    ) -> Any:
        """Run an agent job that is a step of a flow or has no flow."""
        if description is None:
            return await self._carry_out(ctx, **step)
        chosen: dict[str, Any] = {"skill": skill, "tier": tier, "schema": schema, "budget_micros": budget_micros}
        return await self._agents.carry_out(
            ctx, Wish(description, **chosen, max_retries=max_retries, retry_base_ms=retry_base_ms)
        )

    async def _share(
        self,
        ctx: Context,
        share: int,
        shares: int,
        task: str,
        call: str | None = None,
        tier: str | None = None,
        retries: int = 0,
    ) -> Any:
        """Run a share of a crew that is a step, with a function or a model."""
        if call is not None:
            return output_of(await called(ctx, call, {"share": share, "shares": shares, "task": task}))
        whole = f"{task}\n\nYou do share {share + 1} of {shares}."
        return await self._agents.carry_out(ctx, Wish(whole, tier=tier, max_retries=retries))

    async def _carry_out(
        self,
        ctx: Context,
        flow: str,
        template: int,
        step: str,
        item: Any = None,
        again: bool = False,
        along: Sequence[str] = (),
        careful: int = 0,
    ) -> Any:
        output = await self._carried_out(ctx, flow, template, step, item, again)
        store = await self._opened()
        whole = await shape(store, ctx.tenant_id, template)
        if not whole.steps[step.partition("[")[0]].inline:
            return output
        if ctx.attempt > 1 and ctx.attempt - 1 > await self._failures(ctx):
            careful = MOST_AHEAD + 1  # its worker died, and another step can have been the cause
        return await Ahead(store, ctx, flow, whole, step, output).gone(along, careful)

    async def _carried_out(
        self, ctx: Context, flow: str, template: int, step: str, item: Any, again: bool
    ) -> dict[str, Any]:
        try:
            task = await self._task(ctx, flow, template, step, item, again)
        except Wrong as error:
            raise PermanentError(str(error)) from None
        try:
            async with nullcontext() if (seconds := seconds_of(task)) is None else asyncio.timeout(seconds):
                return output_of(await self._ways[task.step.kind](ctx, task))
        except (PermanentError, ValidationError):
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and ctx.cancel_requested:
                raise  # the worker cancelled it; otherwise the function raised it, which is a failure like any other
            if task.step.kind == "call":
                error.final = await self._failures(ctx) + 1 >= task.tries  # type: ignore[union-attr]  # read then, too
            if delay := delay_us_of(task, ctx.attempt):
                asked = outcome.delay_us(error) or 0  # an agent waits at least as long as its provider requests
                error.delay_us = max(delay, asked)  # type: ignore[union-attr]  # read when the job is settled
            raise

    async def _task(self, ctx: Context, flow: str, template: int, name: str, item: Any, again: bool) -> Task:
        return await task_of(await self._opened(), ctx.tenant_id, flow, template, name, item, again)

    async def _run(self, ctx: Context, task: Task) -> dict[str, Any]:
        """Run a program behind its tool's circuit breaker. keptwork.toml is read when the first tool runs."""
        try:
            config = self._config()
        except KeptworkError as error:
            raise PermanentError(str(error)) from None
        spec = replace(spec_of(task.step, config), tries=task.tries)
        failures = await self._failures(ctx)
        if spec.idempotent and (deaths := ctx.attempt - 1 - failures) > DEATHS:
            raise PermanentError(f"its worker died {deaths} times")
        if task.again and not spec.idempotent:
            question = f"{task.name} ran in an earlier round of {task.flow}, and must not run twice. Run it again?"
            await ctx.wait_for_approval(question, by=spec.review_by, details={"command": list(spec.argv)[:100]})
        breaker = await self._through_breaker(ctx, task, config)
        try:
            return await run_tool(ctx, spec)
        except NotApproved:
            raise  # a reviewer's decision, which does not concern the tool
        except PermanentError:
            if breaker is not None and not (spec.retry_on_failure and spec.idempotent):
                ctx.tell_breaker(breaker, False)  # a permanent failure counts against the tool too
            raise
        except (TransientError, TimeoutError) as error:
            if not spec.idempotent or failures + 1 < task.tries:
                raise
            if breaker is not None:
                ctx.tell_breaker(breaker, False)
            raise PermanentError(str(error)) from None

    async def _failures(self, ctx: Context) -> int:
        """Return how many earlier attempts failed. In the other attempts the worker died."""
        if ctx.attempt == 1:
            return 0
        wanted = EventFilter(ctx.tenant_id, JOB.name, (ids.key_of(ctx.job_id) or ("", 0))[1])
        found = await (await self._opened()).events(wanted, limit=MOST_EVENTS, newest_first=True)
        return sum(event.trigger == "retry" for event in found)

    async def _through_breaker(self, ctx: Context, task: Task, config: Config) -> str | None:
        """Check the breaker of a tool and return its name, or None for a program that is not a tool."""
        if task.step.tool is None:
            return None
        name, given = f"tool:{task.step.tool}", config.tools[task.step.tool].breaker
        wanted = (given.failure_threshold, given.cooldown_seconds, given.success_threshold)
        await ctx.breaker(Breaker(name, *wanted, task.step.on_open))
        return name

    async def _ask(self, ctx: Context, task: Task) -> dict[str, Any]:
        """Run an agent step. Its prompt is its description.

        If resolved references made the prompt too long for a description, the text in the flow's file selects skill and
        tier.
        """
        step, prompt = task.step, expression.as_text(task.step.agent)
        description = described(prompt)
        wish = Wish(
            description,
            prompt,
            chosen_by="" if description == prompt else task.written,
            skill=step.skill,
            tier=step.tier,
            schema=step.output_schema,
            max_retries=task.tries - 1,
            on_open=step.on_open,
            timeout=step.timeout,
            budget_micros=None if step.budget_usd is None else micros(step.budget_usd),
        )
        return await self._agents.carry_out(ctx, wish)


def _read_config() -> Config:
    from keptwork.settings import read

    return read()


async def task_of(
    store: Store, tenant_id: int, flow: str, template: int, step: str, item: Any = None, again: bool = False
) -> Task:
    """Return the step to run, from the arguments of its job. An unresolvable reference raises `Wrong`."""
    whole = await shape(store, tenant_id, template)
    found, kind = whole.steps[step.partition("[")[0]], whole.flow.kind
    written = found.agent or ""
    if found.refers:
        roots = {one.root for one in found.references}
        values = await _values(store, tenant_id, flow, kind, roots) if roots else {}
        found = _filled(found, looking(values, item if "[" in step else NO_ITEM, cut=found.takes_cut))
    return Task(flow, kind, found, step, again, retries_of(kind, found) + 1, written)


async def _values(store: Store, tenant_id: int, flow: str, kind: str, roots: set[str]) -> dict[str, Any]:
    """Return the values that the references of a step need. Outputs of finished steps do not change any more."""
    key = (ids.key_of(flow) or ("", 0))[1]
    values: dict[str, Any] = {
        output.name: await value_of(store, tenant_id, KINDS[kind], output)
        for output in await store.outputs(key, sorted(roots))
    }
    (row,) = await store.rows(KINDS[kind].flow, [key], ("name", "inputs"))
    return {**values, "inputs": inputs_of(row), "flow": {"id": flow, "name": row["name"]}}


async def call(ctx: Context, task: Task) -> Any:
    """Call a Python function with the arguments of `with`."""
    return await called(ctx, task.step.call or "", task.step.with_)


def _filled(step: Step, look: expression.Look) -> Step:
    """Return the step with every reference replaced by its value. The values are checked only where they are used."""
    said = step.model_dump(exclude={"id", "when", "depends_on", "description", "for_each"}, exclude_unset=True)
    return step.model_copy(update=filled_step(said, look))


def seconds_of(task: Task) -> float | None:
    """Return the time limit of a function call. Tools and agents enforce their own, to end what they have started."""
    limited = task.step.timeout is not None and task.step.kind == "call"
    return span_us(task.step.timeout or 0) / 1_000_000 if limited else None


def delay_us_of(task: Task, attempt: int) -> int | None:
    """Return the delay before the next attempt if the flow sets one: in a run, its base times 2^attempts."""
    if task.step.backoff is None and task.kind != "run":
        return None
    base = RUN_BACKOFF_US if task.step.backoff is None else span_us(task.step.backoff)
    return min(base << min(attempt if task.kind == "run" else attempt - 1, 20), LONGEST_BACKOFF_US)


# The built-in kind of job that starts a flow. A schedule of a flow enqueues one at each tick.


class StartKind:
    """Starts flows, one for each tick."""

    def __init__(self, opened: Callable[[], Awaitable[Store]]) -> None:
        self._opened = opened

    def job_types(self) -> dict[str, JobType]:
        """Return the kind by name, for the worker."""
        return {START: JobType.of(self._start, name=START)}

    async def _start(self, ctx: Context, flow: str, inputs: dict[str, Any] | None = None) -> dict[str, str]:
        """Start the flow of this tick. A repeated call returns the same flow."""
        store = await self._opened()
        try:
            template = await start.find(store, ctx.tenant_id, flow)
            key = flow_key(ctx.correlation_id) or ctx.job_id
            newest, by = start.by_name(template, flow), Actor(SCHEDULER)
            ref = await flows.start_template(store, template, inputs, newest=newest, key=key, actor=by)
        except (NotFound, BadInput, FlowKeyReused) as error:
            raise PermanentError(str(error)) from None
        return {"flow": ref.public_id}

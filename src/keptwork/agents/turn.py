"""Run one turn of an agent: a model request that is answered once and paid for once, whatever crashes.

A turn reserves money before the call. It then writes the answer, as a checkpoint of the job, and the cost in one
transaction. A stored answer is never requested again, and an answer that was lost with its worker is recorded as lost.
If the job ends during a call, the call can still finish within the grace period of its worker. Its answer is not used,
but its cost is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from keptwork.agents import budget_rules, budgets, transcripts
from keptwork.agents.conversation import (
    NOTHING,
    AgentFailure,
    Answer,
    BusinessFailure,
    Provider,
    Request,
    Stop,
    SystemFailure,
    Tell,
    ToolUse,
    Usage,
)
from keptwork.agents.providers.redacting import Discreet
from keptwork.agents.skills import Skill, Tier, skills
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.core.money import Caps
from keptwork.errors import KeptworkError, LeaseLost
from keptwork.jobs.breaker import Breaker
from keptwork.jobs.outcome import Release, Suspend
from keptwork.observability import spans
from keptwork.outcomes import PermanentError
from keptwork.store import Store, Transaction
from keptwork.workers.parked_waits import Suspended

if TYPE_CHECKING:
    from keptwork.settings import Config


# The provider, the models of each tier, and the skills that agents can use.


class Lineup(NamedTuple):
    """A provider, its models, the skills, and the configuration."""

    provider: Provider
    models: Mapping[Tier, str]
    skills: Sequence[Skill]
    config: Config


class Lineups:
    """Reads the configuration when an agent first needs it, and then keeps one provider.

    Skills are read each time, because users edit them.
    """

    def __init__(self, config: Callable[[], Config], provider: Provider | None = None) -> None:
        self._config = config
        self._given = provider
        self._chosen: tuple[Provider, Mapping[Tier, str]] | None = None

    def __call__(self) -> Lineup:
        config = self._config()
        if self._chosen is None:
            self._chosen = self._choice(config)
        provider, models = self._chosen
        return Lineup(provider, models, skills(config.skills), config)

    def _choice(self, config: Config) -> tuple[Provider, Mapping[Tier, str]]:
        """Choose the provider, wrapped so that secrets are redacted in both directions."""
        if self._given is not None:
            return Discreet(self._given), {tier: config.models.name(self._given.name, tier) for tier in Tier}
        from keptwork.agents.providers.choose import choose

        chosen = choose(config)
        return Discreet(chosen.provider), chosen.models


T = TypeVar("T")

CHARACTERS_A_TOKEN = 4
TAIL = 200
LONGEST_KEPT = 32_000
"""Maximum characters of an answer in the log of its job. The result of the job holds the complete answer."""

logger = logging.getLogger("keptwork")

_LATE: set[asyncio.Future[Any]] = set()
"""Calls whose handlers were stopped. The event loop holds only weak references to tasks, so this set retains them."""

Heard = Callable[[str, str], None]
"""Receives the ID of a job and the next piece of its model output."""


@dataclass(frozen=True, slots=True)
class Place:
    """The round and turn of a request in the conversation of a job.

    A rejected answer starts another round. Turn 0 of a job only selects its tier.
    """

    turn: int
    round: int = 0

    @property
    def conversing(self) -> bool:
        """Whether the turn belongs in the transcript. Turn 0 has no place there."""
        return self.turn > 0

    @property
    def name(self) -> str:
        return f"{self.round}.{self.turn}"


class _Admitted(NamedTuple):
    """A call that can be made: its name, request, reservation, and circuit breaker."""

    name: str
    request: Request
    reservation: int
    breaker: str
    place: Place


class Turns:
    """Runs the turns of one agent job."""

    def __init__(
        self,
        lineup: Lineup,
        agent_id: int,
        caps: Caps,
        on_open: Literal["hold", "fail"] = "hold",
        heard: Heard | None = None,
    ) -> None:
        self._provider = lineup.provider
        self._config = lineup.config
        self._agent_id = agent_id
        self._caps = caps
        self._on_open = on_open
        self._heard = heard

    async def one_turn(self, ctx: Context, request: Request, place: Place, otherwise: str | None = None) -> Answer:
        """Return the answer of a turn: its stored answer, or one that is requested, paid for, and stored now.

        If the budget has no room for the model, request the model named `otherwise`, if there is one.
        """
        answer: Answer = await ctx.steps.parking.operation(None, self._one_turn, ctx, request, place, otherwise)
        return answer

    async def _one_turn(self, ctx: Context, request: Request, place: Place, otherwise: str | None) -> Answer:
        name = ctx.steps.own_name("turn", place.name)
        kept = await ctx.steps.recall(name)
        if kept is not None:
            return answer_of(json.loads(kept.result))
        if ctx.cancel_requested:
            raise Suspended(Release("it was asked to stop before its next call"))
        keyed = replace(request, key=ctx.idempotency_key(name))
        admitted = await self._admitted(ctx, keyed, name, place, otherwise)
        answer = await self._asked(ctx, admitted)
        return await _surely(self._kept(ctx, admitted, answer))

    # --- before the call

    async def _admitted(
        self, ctx: Context, request: Request, name: str, place: Place, otherwise: str | None
    ) -> _Admitted:
        """Check the circuit breaker of the model and reserve the maximum cost of the call. Suspend the job if the
        budget has no room."""
        breaker = f"model:{self._provider.name}:{request.model}"
        await ctx.breaker(Breaker(breaker, on_open=self._on_open))
        answer = await self._reserved(ctx, request, name)
        if isinstance(answer, budgets.Reserved):
            if answer.warning is not None:
                logger.warning("%s: %s", ctx.job_id, answer.warning)
            return _Admitted(name, request, answer.id, breaker, place)
        if answer.hold and otherwise is not None:
            return await self._admitted(ctx, replace(request, model=otherwise), name, place, None)
        raise Suspended(_held(answer))

    async def _reserved(self, ctx: Context, request: Request, name: str) -> budgets.Reserved | budgets.Refused:
        job, provider, model = ctx.job, self._provider.name, request.model
        ceiling = _priced(lambda: budget_rules.ceiling_micros(provider, model, request, self._config))
        return await ctx.ask(
            lambda store: budgets.reserve(
                store,
                tenant_id=job.tenant_id,
                job_id=job.id,
                flow_tree=job.tree_id,
                call=name,
                provider=provider,
                model=model,
                ceiling_micros=ceiling,
                tokens=tokens_of(request),
                tokens_per_minute=self._config.models.tokens_per_minute.get(model),
                caps=self._caps,
                epoch=job.epoch,
                agent_id=self._agent_id,
            )
        )

    # --- the call

    async def _asked(self, ctx: Context, admitted: _Admitted) -> Answer:
        """Request an answer and report to the circuit breaker. Only a `SystemFailure` counts against the model."""
        call = asyncio.ensure_future(self._answer(ctx, admitted.request))
        try:
            answer = await asyncio.shield(call)
        except asyncio.CancelledError:
            self._let_end(ctx, admitted, call)
            raise
        except AgentFailure as failure:
            ctx.tell_breaker(admitted.breaker, not isinstance(failure, SystemFailure))
            await _surely(self._settle_failure(ctx, admitted, failure))
            raise
        except PermanentError as refusal:
            refused = BusinessFailure(str(refusal), sent=False)  # and is not billed
            await _surely(self._settle_failure(ctx, admitted, refused))
            raise
        ctx.tell_breaker(admitted.breaker, True)
        return answer

    async def _answer(self, ctx: Context, request: Request) -> Answer:
        with spans.chat(self._provider.name, request.model, request.max_tokens) as span:
            answer = await self._provider.answer(request, self._tell(ctx, request.max_tokens))
            spans.answered(span, answer)
        return answer

    def _let_end(self, ctx: Context, admitted: _Admitted, call: asyncio.Future[Answer]) -> None:
        """Let the call of a stopped handler finish within the remaining grace period, so that its cost is recorded."""
        _held_on(asyncio.ensure_future(self._ended_late(ctx, admitted, call)))

    async def _ended_late(self, ctx: Context, admitted: _Admitted, call: asyncio.Future[Answer]) -> None:
        try:
            async with asyncio.timeout(ctx.grace_left):
                answer = await call
            await self._settle_late(ctx, admitted, answer)
        except AgentFailure as failure:
            with contextlib.suppress(KeptworkError):
                await self._settle_failure(ctx, admitted, failure)
        except Exception as error:  # the ceiling stays spent, and no caller is left
            logger.debug("%s: the late outcome of a call is unknown: %s", ctx.job_id, error)

    def _tell(self, ctx: Context, most_tokens: int) -> Tell:
        """Return a callback that reports streamed output: its tail is the job's progress."""
        tail, length = "", 0

        def tell(piece: str) -> None:
            nonlocal tail, length
            tail, length = (tail + piece)[-TAIL:], length + len(piece)
            ctx.progress(min(length / CHARACTERS_A_TOKEN / most_tokens, 0.99), tail)
            if self._heard is not None:
                self._heard(ctx.job_id, piece)

        return tell

    # --- after the call

    async def _kept(self, ctx: Context, admitted: _Admitted, answer: Answer) -> Answer:
        cost, usage = self._cost(admitted, answer.usage), answer.usage
        save = ctx.steps.save_whole(admitted.name, json.dumps(data_of(answer), separators=(",", ":")))

        async def work(tx: Transaction) -> None:
            if (await tx.checkpoint([save]))[0] is None:
                raise LeaseLost(lifecycle=JOB.name, id=ctx.job_id, trigger="checkpoint")
            if admitted.place.conversing:
                await transcripts.append(tx, ctx.job, admitted.request, answer, round=admitted.place.round)
            await tx.note_call(ctx.job.id, admitted.reservation, answer.text[:LONGEST_KEPT])
            await budgets.settle(tx, admitted.reservation, cost_micros=cost, usage=usage, outcome="answered")

        try:
            await ctx.ask(lambda store: store.atomically(work, 4))
        except LeaseLost:
            await self._settle_late(ctx, admitted, answer)
            raise
        return answer

    async def _settle_late(self, ctx: Context, admitted: _Admitted, answer: Answer) -> None:
        """Record the actual cost of a call whose job has ended. The answer itself is not stored."""
        cost, usage = self._cost(admitted, answer.usage), answer.usage

        async def work(tx: Transaction) -> None:
            await budgets.settle(tx, admitted.reservation, cost_micros=cost, usage=usage, outcome="answered")

        await ctx.ask(lambda store: store.atomically(work))

    async def _settle_failure(self, ctx: Context, admitted: _Admitted, failure: AgentFailure) -> None:
        """Settle the reservation of a failed call, and apply a requested backoff across all workers.

        If the provider reported usage, that usage is paid. If the request never reached the model, the reservation is
        released. Otherwise the call might have been billed, and its ceiling is recorded as lost.
        """
        usage = failure.usage or NOTHING
        cost = self._cost(admitted, usage) if failure.usage else 0

        async def work(tx: Transaction) -> None:
            if not failure.sent:
                await budgets.release(tx, admitted.reservation)
                return
            if admitted.place.conversing:
                await transcripts.append_sent(tx, ctx.job, admitted.request, round=admitted.place.round)
            if failure.usage is None:
                await budgets.give_up(tx, admitted.reservation)
            else:
                await budgets.settle(tx, admitted.reservation, cost_micros=cost, usage=usage, outcome="failed")

        await ctx.ask(lambda store: store.atomically(work, 3))
        asked_us = failure.retry_after_us if isinstance(failure, SystemFailure) else None
        if asked_us:
            await ctx.ask(lambda store: self._back_off(store, admitted.request.model, asked_us))

    async def _back_off(self, store: Store, model: str, asked_us: int) -> None:
        await budgets.back_off(store, self._provider.name, model, await store.now() + asked_us)

    def _cost(self, admitted: _Admitted, usage: Usage) -> int:
        """Return the cost at the price of the requested model name, because that price was reserved."""
        return _priced(
            lambda: budget_rules.cost_micros(self._provider.name, admitted.request.model, usage, self._config)
        )


async def _surely(work: Coroutine[Any, Any, T]) -> T:
    """Write the outcome of a call even if the handler is stopped meanwhile."""
    return await asyncio.shield(_held_on(asyncio.ensure_future(work)))


def _held_on(task: asyncio.Future[T]) -> asyncio.Future[T]:
    _LATE.add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Future[Any]) -> None:
    """Discard a task and retrieve its exception, so that asyncio does not log it as unhandled."""
    _LATE.discard(task)
    if not task.cancelled():
        task.exception()


def tokens_of(request: Request) -> int:
    """Return the approximate number of tokens that a call can take, including the longest answer."""
    said = sum(len(message.text) + 100 * len(message.uses) for message in request.messages)
    return (len(request.system) + said) // CHARACTERS_A_TOKEN + request.max_tokens


def _priced(price: Callable[[], int]) -> int:
    try:
        return price()
    except KeptworkError as error:
        raise PermanentError(str(error)) from None


def _held(refused: budgets.Refused) -> Release | Suspend:
    """Return the outcome for a refused reservation: a hold until a cap allows it, or a wait for room under a rate
    limit."""
    if not refused.hold:
        return Suspend("room under a limit", refused.until_us)
    return Release(refused.reason, held_by=refused.hold)


# --- stored form


def data_of(answer: Answer) -> dict[str, Any]:
    """Return an answer in its JSON form."""
    uses = [{"id": use.id, "name": use.name, "arguments": use.arguments} for use in answer.uses]
    rest = {"stop": answer.stop, "request_id": answer.request_id}
    return {"text": answer.text, "model": answer.model, "usage": list(answer.usage), "uses": uses, **rest}


def answer_of(data: Mapping[str, Any]) -> Answer:
    """Return the answer that `data_of` stored."""
    uses = tuple(ToolUse(use["id"], use["name"], use["arguments"]) for use in data["uses"])
    return Answer(data["text"], data["model"], Usage(*data["usage"]), Stop(data["stop"]), uses, data["request_id"])

"""One turn of an agent: a request to a model, answered once and paid for once, whatever happens in between.

Money is reserved before the call. Its answer, as a checkpoint of the job, and what it cost are written together: an
answer that was kept is never asked for again, and one that was lost with its worker is on record as lost.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from detent.agent import prices
from detent.agent.conversation import (
    NOTHING,
    AgentFailure,
    Answer,
    Provider,
    Request,
    Stop,
    SystemFailure,
    Tell,
    ToolUse,
    Usage,
)
from detent.breaker import Breaker
from detent.errors import DetentError, LeaseLost
from detent.lifecycle import JOB
from detent.outcomes import PermanentError
from detent.service import budgets
from detent.store import Transaction
from detent.store.agents import Spent
from detent.worker.context import Context
from detent.worker.settlement import Release, Suspend
from detent.worker.steps import Suspended

if TYPE_CHECKING:
    from detent.config import Config

CHARACTERS_A_TOKEN = 4
TAIL = 200
LONGEST_KEPT = 32_000
"""So much of what a model said goes into the record of its job; the whole of it is the job's result."""

Turn = Callable[[Context, Request, int], Awaitable[Answer]]
"""Makes turn `n` of a job, counted from 1: what was answered before is returned as it was."""


class Said(NamedTuple):
    """What an exchange of one or more turns came to: the last answer, the request it answers, and which turn it was."""

    answer: Answer
    request: Request
    turn: int


Exchange = Callable[[Context, Request, int], Awaitable[Said]]
"""Begins with turn `n`, and goes on until the model wants nothing more of us."""

Heard = Callable[[str, str], None]
"""Is given the id of a job, and a piece of what a model says in it."""


class Turns:
    """Makes the turns of jobs through one provider."""

    def __init__(
        self,
        provider: Provider,
        config: Config,
        heard: Heard | None = None,
        on_open: Literal["hold", "fail"] = "hold",
    ) -> None:
        self._provider = provider
        self._config = config
        self._heard = heard
        self._on_open = on_open

    async def one_turn(self, ctx: Context, request: Request, n: int) -> Answer:
        """The answer to turn `n`: the one that was kept, or one that is asked for, paid and kept now."""
        name = ctx.steps.own_name("turn", str(n))
        kept = await ctx.steps.recall(name)
        if kept is not None:
            return answer_of(json.loads(kept.result))
        breaker = await self._let_through(ctx, request.model)
        reservation = await self._reserved(ctx, request, name)
        answer = await self._asked(ctx, replace(request, key=ctx.idempotency_key(name)), breaker, reservation)
        return await self._kept(ctx, name, request.model, answer, reservation)

    async def exchange(self, ctx: Context, request: Request, n: int) -> Said:
        """An exchange of one turn."""
        return Said(await self.one_turn(ctx, request, n), request, n)

    # --- before the call

    async def _let_through(self, ctx: Context, model: str) -> str:
        """Asks the breaker of the model; returns its name."""
        name = f"model:{self._provider.name}:{model}"
        await ctx.breaker(Breaker(name, on_open=self._on_open))
        return name

    async def _reserved(self, ctx: Context, request: Request, name: str) -> int:
        """What it may cost at most is put aside. A job for which there is nothing left is held back until there is."""
        job, provider = ctx.job, self._provider.name
        ceiling = self._priced(lambda: prices.ceiling_micros(provider, request.model, request, self._config))
        await ctx.ask(lambda store: budgets.lost(store, job.id, name))
        answer = await ctx.ask(
            lambda store: budgets.reserve(
                store,
                tenant_id=job.tenant_id,
                job_id=job.id,
                flow_tree=job.tree_id,
                call=name,
                provider=provider,
                model=request.model,
                ceiling_micros=ceiling,
                tokens=tokens_of(request),
            )
        )
        if isinstance(answer, budgets.Refused):
            raise Suspended(_held(answer))
        return answer.id

    def _priced(self, price: Callable[[], int]) -> int:
        try:
            return price()
        except DetentError as error:
            raise PermanentError(str(error)) from None

    # --- the call

    async def _asked(self, ctx: Context, request: Request, breaker: str, reservation: int) -> Answer:
        """An answer that is no good is one all the same: the model works."""
        try:
            answer = await self._provider.answer(request, self._tell(ctx, request.max_tokens))
        except AgentFailure as failure:
            ctx.tell_breaker(breaker, not isinstance(failure, SystemFailure))
            await self._settle_failure(ctx, request, failure, reservation)
            raise
        ctx.tell_breaker(breaker, True)
        return answer

    def _tell(self, ctx: Context, most_tokens: int) -> Tell:
        """Passes on what comes: the last of it is the job's progress."""
        said = ""

        def tell(piece: str) -> None:
            nonlocal said
            said += piece
            done = min(len(said) / CHARACTERS_A_TOKEN / most_tokens, 0.99)
            ctx.progress(done, said[-TAIL:])
            if self._heard is not None:
                self._heard(ctx.job_id, piece)

        return tell

    # --- after the call

    async def _kept(self, ctx: Context, name: str, asked: str, answer: Answer, reservation: int) -> Answer:
        cost = self._cost(asked, answer.usage)
        save = ctx.steps.save_whole(name, json.dumps(data_of(answer), separators=(",", ":")))

        async def work(tx: Transaction) -> None:
            if (await tx.checkpoint([save]))[0] is None:
                raise LeaseLost(lifecycle=JOB.name, id=ctx.job_id, trigger="checkpoint")
            await budgets.settle(tx, reservation, cost_micros=cost, usage=answer.usage, outcome="answered")
            await tx.note_call(
                ctx.job.id,
                Spent(reservation, cost, answer.usage.input, answer.usage.output, answer.text[:LONGEST_KEPT]),
            )

        await ctx.ask(lambda store: store.atomically(work))
        return answer

    async def _settle_failure(self, ctx: Context, request: Request, failure: AgentFailure, reservation: int) -> None:
        """What the provider counted for a call that failed is paid; what it never saw costs nothing."""
        usage = failure.usage or NOTHING
        cost = self._cost(request.model, usage) if failure.usage else 0

        async def work(tx: Transaction) -> None:
            if not failure.sent:
                await budgets.release(tx, reservation)
                return
            await budgets.settle(tx, reservation, cost_micros=cost, usage=usage, outcome="failed")
            await tx.note_call(ctx.job.id, Spent(reservation, cost, usage.input, usage.output))

        await ctx.ask(lambda store: store.atomically(work))

    def _cost(self, model: str, usage: Usage) -> int:
        return self._priced(lambda: prices.cost_micros(self._provider.name, model, usage, self._config))


def tokens_of(request: Request) -> int:
    """About how many tokens a call may take, the longest answer included."""
    said = sum(
        len(message.text) + len(json.dumps([use.arguments for use in message.uses])) for message in request.messages
    )
    return (len(request.system) + said) // CHARACTERS_A_TOKEN + request.max_tokens


def _held(refused: budgets.Refused) -> Release | Suspend:
    """Held by a cap until somebody raises it, or put off until there is room again."""
    if not refused.hold:
        return Suspend("room under a limit", refused.until_us)
    return Release(refused.reason, held_by=refused.hold)


# --- as it is kept


def data_of(answer: Answer) -> dict[str, Any]:
    """An answer as JSON can hold it."""
    uses = [{"id": use.id, "name": use.name, "arguments": use.arguments} for use in answer.uses]
    rest = {"stop": answer.stop, "request_id": answer.request_id}
    return {"text": answer.text, "model": answer.model, "usage": list(answer.usage), "uses": uses, **rest}


def answer_of(data: Mapping[str, Any]) -> Answer:
    """The answer that was kept so."""
    uses = tuple(ToolUse(use["id"], use["name"], use["arguments"]) for use in data["uses"])
    return Answer(data["text"], data["model"], Usage(*data["usage"]), Stop(data["stop"]), uses, data["request_id"])

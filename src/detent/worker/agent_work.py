"""An agent job carried out: from one state to the next, each time from where it was left.

    INIT          is there something to do?
    DEFINE_AGENT  which skill, which tier of models, and why
    PROCESS       the model is asked, and its answer looked at
    END           there is an answer; with the end of the job comes the record

Whatever is raised in PROCESS is tried again as often as the job may, after a wait; anywhere else it is the end. Answers
that were kept are not asked for again, so a worker that takes over says the same as the one before it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from detent.agent import validation
from detent.agent.conversation import (
    AgentFailure,
    Answer,
    BusinessFailure,
    Message,
    Request,
    Role,
    Stop,
    SystemFailure,
)
from detent.agent.next import RetryConfig
from detent.agent.routing import Tier, grade, route
from detent.agent.skill import Skill
from detent.errors import LeaseLost, StoreError
from detent.lifecycle.agent import DEFINE_AGENT, INIT, PROCESS
from detent.moments import span_us
from detent.outcomes import PermanentError, ValidationError
from detent.service import agent_moves, agents
from detent.service.agents import NewAgent
from detent.worker.agent_turn import Heard, Said, Turns
from detent.worker.context import Context
from detent.worker.lineup import Lineup
from detent.worker.settlement import described

LONGEST_REASON = 500
CLASSIFY = (
    "Say how capable a model this task needs. Answer with one word: haiku for what is short and plain, sonnet for what "
    "takes several steps, opus for what is hard or must not go wrong."
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of an agent. `prompt` is what the model is given, where that is more than the description."""

    description: str
    prompt: str = ""
    skill: str | None = None
    tier: str | None = None
    schema: Mapping[str, Any] | None = None
    max_retries: int = agents.USUAL_RETRIES
    retry_base_ms: int = agents.USUAL_BASE_MS
    on_open: Literal["hold", "fail"] = "hold"
    timeout: str | None = None

    @property
    def text(self) -> str:
        """What the model is given."""
        return self.prompt or self.description


class AgentWork:
    """Carries agent jobs out. Who is to be asked is looked up when the first of them comes."""

    def __init__(self, lineup: Callable[[], Lineup], heard: Heard | None = None) -> None:
        self._lineup = lineup
        self._heard = heard

    async def carry_out(self, ctx: Context, wish: Wish) -> dict[str, Any]:
        """What comes of an agent job, from whatever state it is in."""
        row = await ctx.ask(lambda store: agents.of_job(store, ctx.job, _new(ctx, wish)))
        progress = _Progress(row)
        try:
            return await self._carried_out(ctx, wish, progress)
        except (PermanentError, ValidationError, LeaseLost, StoreError):
            raise
        except Exception as error:
            raise _failed(progress.row, error) from error

    async def _carried_out(self, ctx: Context, wish: Wish, progress: _Progress) -> dict[str, Any]:
        if progress.state == INIT.name:
            await self._begin(ctx, wish, progress)
        lineup = self._lineup()
        turns = Turns(lineup.provider, lineup.config, self._heard, wish.on_open)
        if progress.state == DEFINE_AGENT.name:
            await self._define(ctx, wish, progress, lineup, turns)
        talk = _Talk(ctx, wish, lineup, turns, progress)
        if progress.state == PROCESS.name:
            return await talk.process()
        return talk.output(await talk.conversed())

    async def _begin(self, ctx: Context, wish: Wish, progress: _Progress) -> None:
        """INIT: is there something to do?"""
        if wrong := agents.unfit(progress.row["description"]):
            raise PermanentError(wrong)
        await progress.advance(ctx)

    async def _define(self, ctx: Context, wish: Wish, progress: _Progress, lineup: Lineup, turns: Turns) -> None:
        """DEFINE_AGENT: which skill, which tier, which model, and why."""
        skill, why_skill = _routed(wish, lineup)
        tier, why_tier = await _graded(ctx, wish, lineup, turns)
        reasons = json.dumps({"skill": why_skill, "tier": why_tier, "first_tier": tier})
        model = {"provider": lineup.provider.name, "model": lineup.models[tier]}
        await progress.advance(ctx, skill=skill.name, tier=tier.value, **model, reasons=reasons)


class _Progress:
    """How far an agent job has come: its row, as it is after each move."""

    def __init__(self, row: Row) -> None:
        self.row = row

    @property
    def state(self) -> str:
        return str(self.row["state"])

    async def advance(self, ctx: Context, **choice: Any) -> None:
        row = self.row
        self.row = await ctx.ask(lambda store: agent_moves.advance(store, ctx.job, row, **choice))

    async def amend(self, ctx: Context, **choice: Any) -> None:
        row = self.row
        self.row = await ctx.ask(lambda store: agent_moves.amend(store, ctx.job, row, **choice))


class _Talk:
    """The conversation of an agent job that is defined."""

    def __init__(self, ctx: Context, wish: Wish, lineup: Lineup, turns: Turns, progress: _Progress) -> None:
        self._ctx = ctx
        self._wish = wish
        self._lineup = lineup
        self._turns = turns
        self._progress = progress
        self._skill = _skill_named(lineup, str(progress.row["skill"]))
        self._schema = wish.schema or self._skill.output_schema
        self._verdicts = [ctx.steps.own_name("verdict", str(n)) for n in range(progress.row["retry_count"] + 1)]

    async def process(self) -> dict[str, Any]:
        """PROCESS: an answer that passes, or a failure."""
        said = await _in_time(self._wish, self.conversed())
        if wrong := _unfit(said.answer, self._schema):
            await self._reject(said.turn, wrong)
            raise BusinessFailure(wrong)
        await self._progress.advance(self._ctx)
        return self.output(said)

    async def conversed(self) -> Said:
        """The last answer there is, or comes now. One that was found wrong in an earlier attempt is followed by what
        was wrong with it, and by the next."""
        rejected, tier = await self._rejected(), self._first_tier
        request, n = self._request(tier), 1
        while True:
            said = await self._turns.exchange(self._ctx, request, n)
            wrong = rejected.pop(said.turn, None)
            if wrong is None:
                return said
            tier = await self._escalated(tier, wrong)
            told = Message(Role.USER, f"That is not what was asked for: {wrong}\nAnswer again.")
            messages = (*said.request.messages, said.answer.message, told)
            request, n = replace(said.request, messages=messages, model=self._lineup.models[tier]), said.turn + 1

    def _request(self, tier: Tier) -> Request:
        system = self._skill.instructions
        if self._schema is not None:
            wanted = json.dumps(self._schema, separators=(",", ":"))
            system += f"\n\nAnswer with one JSON document and nothing else. It fits this JSON Schema: {wanted}"
        model = self._progress.row["model"] if tier == self._progress.row["tier"] else self._lineup.models[tier]
        return Request(model, (Message(Role.USER, self._wish.text),), system.strip(), self._lineup.max_tokens)

    # --- answers that are no good

    async def _rejected(self) -> dict[int, str]:
        """What was wrong with which turn, as far as it was counted: a verdict whose attempt was not settled is passed
        again."""
        found = [await self._ctx.steps.recall(name) for name in self._verdicts[:-1]]
        verdicts = [json.loads(one.result) for one in found if one is not None]
        return {verdict["turn"]: verdict["wrong"] for verdict in verdicts}

    async def _reject(self, turn: int, wrong: str) -> None:
        if await self._ctx.steps.recall(self._verdicts[-1]) is None:
            await self._ctx.steps.keep(self._verdicts[-1], {"turn": turn, "wrong": wrong})

    @property
    def _reasons(self) -> dict[str, Any]:
        reasons: dict[str, Any] = json.loads(self._progress.row["reasons"])
        return reasons

    @property
    def _first_tier(self) -> Tier:
        return Tier(self._reasons["first_tier"])

    async def _escalated(self, tier: Tier, wrong: str) -> Tier:
        """One tier up, where that is wanted and there is one; the row tells of it once."""
        if not self._lineup.escalates or tier.above is None:
            return tier
        above, reasons = tier.above, self._reasons
        steps = reasons.get("escalated", [])
        if not any(step["to"] == above for step in steps):
            steps = [*steps, {"to": above, "because": wrong[:LONGEST_REASON]}]
            choice = {"tier": above.value, "model": self._lineup.models[above]}
            await self._progress.amend(self._ctx, **choice, reasons=json.dumps({**reasons, "escalated": steps}))
        return above

    # --- what comes of it

    def output(self, said: Said) -> dict[str, Any]:
        """What the job returns."""
        row, answer = self._progress.row, said.answer
        whole = {"text": answer.text, "model": answer.model, "provider": row["provider"]}
        chosen = {"tier": row["tier"], "skill": row["skill"]}
        spent = {name: row[name] for name in ("cost_micros", "input_tokens", "output_tokens")}
        output = {**whole, **chosen, **spent, "cost_usd": row["cost_micros"] / agents.MICROS}
        return output if self._schema is None else {**output, "json": validation.parsed(answer.text)}


# --- choosing


def _routed(wish: Wish, lineup: Lineup) -> tuple[Skill, str]:
    if wish.skill is not None:
        return _skill_named(lineup, wish.skill), "it was asked for"
    routed = route(wish.description, lineup.skills)
    return routed.skill, routed.why


def _skill_named(lineup: Lineup, name: str) -> Skill:
    found = next((skill for skill in lineup.skills if skill.name == name), None)
    if found is None:
        known = ", ".join(skill.name for skill in lineup.skills)
        raise PermanentError(f"there is no skill {name!r}; there are: {known}")
    return found


async def _graded(ctx: Context, wish: Wish, lineup: Lineup, turns: Turns) -> tuple[Tier, str]:
    """As it was asked for; else by rules; where they have nothing to say, a cheap model may be asked."""
    if wish.tier is not None:
        return Tier(wish.tier), "it was asked for"
    graded = grade(wish.description)
    if graded.points or not lineup.classifies:
        return graded.tier, graded.why
    question = (Message(Role.USER, wish.description),)
    try:
        answer = await turns.one_turn(ctx, Request(lineup.models[Tier.HAIKU], question, CLASSIFY, 16), 0)
    except AgentFailure as failure:
        return graded.tier, f"{graded.why}; the classifier failed: {failure}"
    named = next((tier for tier in Tier if tier in answer.text.lower()), None)
    return (named, "the classifier says so") if named else (graded.tier, f"{graded.why}; the classifier named no tier")


# --- failing


def _unfit(answer: Answer, schema: Mapping[str, Any] | None) -> str | None:
    """What is wrong with an answer; none if nothing is."""
    if answer.stop is Stop.REFUSED:
        return f"the model refused: {answer.text[:LONGEST_REASON]}"
    if answer.stop is Stop.LENGTH:
        return "the answer was cut off at the largest number of tokens; make it shorter"
    if not answer.text.strip():
        return "the answer is empty"
    return validation.check(answer.text, schema)


def _failed(row: Row, error: Exception) -> Exception:
    """What ends the attempt: in PROCESS it is tried again after a wait while there are retries, elsewhere it is the
    end."""
    failure = error if isinstance(error, AgentFailure) else SystemFailure(described(error))
    kind = "Business" if isinstance(failure, BusinessFailure) else "System"
    if row["state"] != PROCESS.name:
        return PermanentError(f"{kind} failure in {row['state']}: {failure}")
    count, most = row["retry_count"], row["max_retries"]
    if count >= most:
        return PermanentError(f"{kind} failure: {failure} (all {most} retries are used up)")
    asked_us = failure.retry_after_us if isinstance(failure, SystemFailure) else None
    wait = RetryConfig(most, row["retry_base_ms"])
    failure.delay_us = wait.delay_ms(count + 1, -(-(asked_us or 0) // 1_000)) * 1_000
    return failure


async def _in_time(wish: Wish, work: Coroutine[Any, Any, Said]) -> Said:
    seconds = None if wish.timeout is None else span_us(wish.timeout) / 1_000_000
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await work
    except TimeoutError:
        if deadline.expired():
            raise SystemFailure(f"it took longer than {wish.timeout}") from None
        raise


def _new(ctx: Context, wish: Wish) -> NewAgent:
    return NewAgent(wish.description, ctx.tenant_id, max_retries=wish.max_retries, retry_base_ms=wish.retry_base_ms)

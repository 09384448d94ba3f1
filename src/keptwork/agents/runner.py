"""Run an agent job from state to state, each time from where it stopped.

    INIT          check that there is a task
    DEFINE_AGENT  choose a skill and a tier of models, with reasons
    PROCESS       request an answer from the model and check it
    END           there is an answer; the record follows when the job finishes

An exception in PROCESS is retried after a backoff, as often as the job allows. An exception in another state is final.
Stored answers are not requested again, so another worker continues with the same answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from keptwork.agents import commands as agents
from keptwork.agents import engine as agent_moves
from keptwork.agents import validation
from keptwork.agents.commands import NewAgent
from keptwork.agents.conversation import (
    AgentFailure,
    Answer,
    BusinessFailure,
    Message,
    Request,
    Role,
    Stop,
    SystemFailure,
)
from keptwork.agents.plan import RetryConfig
from keptwork.agents.skills import Skill, Tier, grade, route
from keptwork.agents.tool_loop import Limits, Toolbox, converse
from keptwork.agents.turn import Heard, Lineup, Place, Turns
from keptwork.context import Context
from keptwork.core.durations import span_us
from keptwork.core.lifecycles.agent import DEFINE_AGENT, INIT, PROCESS
from keptwork.core.money import MICROS, Caps
from keptwork.errors import KeptworkError, LeaseLost, StoreError
from keptwork.jobs.outcome import Release, described
from keptwork.outcomes import PermanentError, ValidationError

if TYPE_CHECKING:
    from keptwork.settings import Config

LONGEST_REASON = 500
CLASSIFYING_TOKENS = 16
CLASSIFY = (
    "Say how capable a model this task needs. Answer with one word: haiku for what is short and plain, sonnet for what "
    "takes several steps, opus for what is hard or must not go wrong."
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """The request to an agent.

    `prompt` is the text for the model, if it differs from the description. `chosen_by` is the text that selects the
    skill and the tier, if that differs too.
    """

    description: str
    prompt: str = ""
    chosen_by: str = ""
    skill: str | None = None
    tier: str | None = None
    schema: Mapping[str, Any] | None = None
    max_retries: int = agents.USUAL_RETRIES
    retry_base_ms: int = agents.USUAL_BASE_MS
    on_open: Literal["hold", "fail"] = "hold"
    timeout: str | None = None
    budget_micros: int | None = None

    @property
    def text(self) -> str:
        """The text for the model."""
        return self.prompt or self.description

    @property
    def topic(self) -> str:
        """The text that selects the skill and the tier."""
        return self.chosen_by or self.description


class Said(NamedTuple):
    """An answer, and the round of the conversation it came in."""

    answer: Answer
    round: int


class AgentWork:
    """Runs agent jobs. The provider and models are looked up when the first job needs them."""

    def __init__(self, lineup: Callable[[], Lineup], heard: Heard | None = None) -> None:
        self._lineup = lineup
        self._heard = heard

    async def carry_out(self, ctx: Context, wish: Wish) -> dict[str, Any]:
        """Run an agent job from its current state and return its output."""
        row = await ctx.ask(lambda store: agents.of_job(store, ctx.job, _new(ctx, wish)))
        progress = _Progress(row)
        try:
            return await self._carried_out(ctx, wish, progress)
        except (PermanentError, ValidationError, LeaseLost, StoreError):
            raise
        except Exception as error:
            if ctx.cancel_requested and not isinstance(error, AgentFailure):
                await ctx.steps.suspend(Release("its worker stopped it"))  # not a failure of the agent
            raise _failed(progress.row, error) from error

    async def _carried_out(self, ctx: Context, wish: Wish, progress: _Progress) -> dict[str, Any]:
        if progress.state == INIT.name:
            await self._begin(ctx, progress)
        lineup = self._lineup()
        turns = Turns(lineup, progress.row["id"], _caps(wish, lineup.config), wish.on_open, self._heard)
        if progress.state == DEFINE_AGENT.name:
            await self._define(ctx, wish, progress, lineup, turns)
        talk = _Talk(ctx, wish, lineup, turns, progress)
        if progress.state == PROCESS.name:
            return await talk.process()
        return await talk.output()

    async def _begin(self, ctx: Context, progress: _Progress) -> None:
        """Leave INIT if the job has a usable task."""
        if wrong := agents.unfit(progress.row["description"]):
            raise PermanentError(wrong)
        await progress.advance(ctx)

    async def _define(self, ctx: Context, wish: Wish, progress: _Progress, lineup: Lineup, turns: Turns) -> None:
        """Leave DEFINE_AGENT with a skill, a tier, and a model, and the reasons for each."""
        skill, why_skill = _routed(wish, lineup)
        tier, why_tier = await _graded(ctx, wish, lineup, turns)
        reasons = json.dumps({"skill": why_skill, "tier": why_tier, "first_tier": tier})
        model = {"provider": lineup.provider.name, "model": lineup.models[tier]}
        await progress.advance(ctx, skill=skill.name, tier=tier.value, **model, reasons=reasons)


class _Progress:
    """The progress of an agent job: its row after each move."""

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
    """The conversation of an agent job that has left DEFINE_AGENT."""

    def __init__(self, ctx: Context, wish: Wish, lineup: Lineup, turns: Turns, progress: _Progress) -> None:
        self._ctx = ctx
        self._wish = wish
        self._lineup = lineup
        self._turns = turns
        self._progress = progress
        self._skill = _skill_named(lineup, str(progress.row["skill"]))
        self._rules = _rules(wish, self._skill)
        self._tools = Toolbox(lineup.config, self._skill.tools) if self._skill.tools else None
        self._limits = _limits(wish, lineup.config)
        self._verdicts = [ctx.steps.own_name("verdict", str(n)) for n in range(progress.row["retry_count"] + 1)]

    async def process(self) -> dict[str, Any]:
        """Leave PROCESS with an answer that passes the rules, or raise."""
        said = await self.conversed()
        wrong, value = await _judged(said.answer, self._rules)
        if wrong is not None:
            await self._reject(said.round, wrong)
            raise BusinessFailure(wrong)
        await self._progress.advance(self._ctx)
        return self._output(said.answer, value)

    async def conversed(self) -> Said:
        """Return the latest answer, stored or requested now. If an earlier attempt rejected an answer, the model
        receives the reason, and another round follows."""
        rejected, tier = await self._rejected(), self._first_tier
        request, otherwise = self._request(tier), None
        for round in count():
            answer = await self._exchange(request, round, otherwise)
            if (wrong := rejected.get(round)) is None:
                return Said(answer, round)
            above = await self._escalated(tier, wrong)
            otherwise = self._model(tier) if above is not tier else None
            tier = above
            told = Message(Role.USER, f"That is not what was asked for: {wrong}\nAnswer again.")
            request = replace(request, messages=(*request.messages, answer.message, told), model=self._model(tier))
        raise AssertionError("a count has no end")

    async def _exchange(self, request: Request, round: int, otherwise: str | None) -> Answer:
        """Run one round: as many turns as the requested tools need."""

        async def ask(request: Request, turn: int) -> Answer:
            return await self._turns.one_turn(self._ctx, request, Place(turn, round), otherwise)

        return await converse(self._ctx, request, self._tools, self._limits, ask, round)

    def _request(self, tier: Tier) -> Request:
        system = self._skill.instructions
        schema = self._wish.schema or self._skill.output_schema
        if schema is not None:
            wanted = json.dumps(schema, separators=(",", ":"))
            system += f"\n\nAnswer with one JSON document and nothing else. It fits this JSON Schema: {wanted}"
        most = self._lineup.config.models.max_tokens
        return Request(self._model(tier), (Message(Role.USER, self._wish.text),), system.strip(), most)

    def _model(self, tier: Tier) -> str:
        """Return the model of a tier.

        For the current tier it is the model in the row, even if the configuration has changed since. For another tier
        it is the configured model.
        """
        row = self._progress.row
        return str(row["model"]) if tier == row["tier"] else self._lineup.models[tier]

    # --- rejected answers

    async def _rejected(self) -> dict[int, str]:
        """Return the reason for each rejected round, from stored verdicts.

        The current attempt is excluded: if it was never completed, its verdict is reached again.
        """
        found = [await self._ctx.steps.recall(name) for name in self._verdicts[:-1]]
        verdicts = [json.loads(one.result) for one in found if one is not None]
        return {verdict["round"]: verdict["wrong"] for verdict in verdicts}

    async def _reject(self, round: int, wrong: str) -> None:
        if await self._ctx.steps.recall(self._verdicts[-1]) is None:
            await self._ctx.steps.keep(self._verdicts[-1], {"round": round, "wrong": wrong})

    @property
    def _reasons(self) -> dict[str, Any]:
        reasons: dict[str, Any] = json.loads(self._progress.row["reasons"])
        return reasons

    @property
    def _first_tier(self) -> Tier:
        return Tier(self._reasons["first_tier"])

    async def _escalated(self, tier: Tier, wrong: str) -> Tier:
        """Return the next higher tier if escalation is enabled and such a tier exists. The row records each step up
        once."""
        if not self._lineup.config.models.escalate or tier.above is None:
            return tier
        above, reasons = tier.above, self._reasons
        steps = reasons.get("escalated", [])
        if not any(step["to"] == above for step in steps):
            steps = [*steps, {"to": above, "because": wrong[:LONGEST_REASON]}]
            choice = {"tier": above.value, "model": self._lineup.models[above]}
            await self._progress.amend(self._ctx, **choice, reasons=json.dumps({**reasons, "escalated": steps}))
        return above

    # --- output

    async def output(self) -> dict[str, Any]:
        """Return the output of the job in END, from its stored answers."""
        said = await self.conversed()
        return self._output(said.answer, (await _judged(said.answer, self._rules))[1])

    def _output(self, answer: Answer, value: Any) -> dict[str, Any]:
        row = self._progress.row
        whole = {"text": answer.text, "model": answer.model, "provider": row["provider"]}
        chosen = {"tier": row["tier"], "skill": row["skill"]}
        spent = {name: row[name] for name in ("cost_micros", "input_tokens", "output_tokens")}
        output = {**whole, **chosen, **spent, "cost_usd": row["cost_micros"] / MICROS}
        return {**output, "json": value} if self._rules.wants_json else output


# --- choosing


def _routed(wish: Wish, lineup: Lineup) -> tuple[Skill, str]:
    if wish.skill is not None:
        return _skill_named(lineup, wish.skill), "it was asked for"
    routed = route(wish.topic, lineup.skills)
    return routed.skill, routed.why


def _skill_named(lineup: Lineup, name: str) -> Skill:
    found = next((skill for skill in lineup.skills if skill.name == name), None)
    if found is None:
        known = ", ".join(skill.name for skill in lineup.skills)
        raise PermanentError(f"there is no skill {name!r}; there are: {known}")
    return found


async def _graded(ctx: Context, wish: Wish, lineup: Lineup, turns: Turns) -> tuple[Tier, str]:
    """Return the requested tier, or one that rules choose. If no rule matches, a cheap model can classify the task."""
    if wish.tier is not None:
        return Tier(wish.tier), "it was asked for"
    graded = grade(wish.topic)
    if graded.points or not lineup.config.models.classifier:
        return graded.tier, graded.why
    question = (Message(Role.USER, wish.topic),)
    try:
        request = Request(lineup.models[Tier.HAIKU], question, CLASSIFY, CLASSIFYING_TOKENS)
        answer = await turns.one_turn(ctx, request, Place(0))
    except AgentFailure as failure:
        return graded.tier, f"{graded.why}; the classifier failed: {failure}"
    named = next((tier for tier in Tier if tier in answer.text.lower()), None)
    return (named, "the classifier says so") if named else (graded.tier, f"{graded.why}; the classifier named no tier")


# --- failing


def _rules(wish: Wish, skill: Skill) -> validation.Rules:
    """Return the rules for the answer: those of the skill, with the schema of the job if it has one."""
    try:
        of_skill = validation.rules_of(skill)
        asked = None if wish.schema is None else validation.rules(wish.schema).schema
    except KeptworkError as error:
        raise PermanentError(str(error)) from None
    return of_skill if asked is None else replace(of_skill, schema=asked)


async def _judged(answer: Answer, rules: validation.Rules) -> validation.Verdict:
    """Return why an answer is unacceptable, if it is, and its parsed value if JSON was requested. The check can take
    seconds, so it runs in a thread."""
    if answer.stop is Stop.REFUSED:
        return validation.Verdict(f"the model refused: {answer.text[:LONGEST_REASON]}")
    if answer.stop is Stop.LENGTH:
        return validation.Verdict("the answer was cut off at the largest number of tokens; make it shorter")
    if not answer.text.strip():
        return validation.Verdict("the answer is empty")
    if rules == validation.Rules():
        return validation.Verdict(None)
    return await asyncio.to_thread(validation.check, answer.text, rules)


def _failed(row: Row, error: Exception) -> Exception:
    """Return the exception that ends the attempt. In PROCESS, it is retried after a backoff while retries remain. In
    another state, it is permanent."""
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


def _limits(wish: Wish, config: Config) -> Limits:
    said = config.agents
    return Limits(said.max_turns, said.max_tool_calls, span_us(wish.timeout or said.timeout) / 1_000_000)


def _caps(wish: Wish, config: Config) -> Caps:
    """Return the configured caps, with the cap of the job itself if it has one."""
    said = config.budgets
    caps = Caps.of_dollars(said.job_usd, said.flow_usd, said.tenant_usd, said.day_usd, said.warn_at)
    return caps if wish.budget_micros is None else replace(caps, job=wish.budget_micros)


def _new(ctx: Context, wish: Wish) -> NewAgent:
    return NewAgent(wish.description, ctx.tenant_id, max_retries=wish.max_retries, retry_base_ms=wish.retry_base_ms)

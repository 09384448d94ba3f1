"""Run the conversation of an agent with a model that uses tools: request, run the tools, report, request again.

A model can use only the tools that its skill allows. Arguments from a model are data: arguments that do not fit are
reported to the model as a failure and never run. Every turn and every tool use is stored as a checkpoint before the
next one starts, so a conversation resumes after a crash where it was. A tool that needs approval runs after a reviewer
has approved exactly this use of it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from keptwork.agents.conversation import AgentFailure, Answer, BusinessFailure, Message, Offer, Request, Role, ToolUse
from keptwork.agents.json_schema import Patterns, TooSlow
from keptwork.agents.transcripts import document, message_of
from keptwork.agents.validation import Unfit
from keptwork.context import Context
from keptwork.core.secrets import current
from keptwork.errors import ApprovalExpired, ApprovalRejected
from keptwork.flows.steps.approval import digest_of
from keptwork.flows.steps.tool import ToolSpec, profile, spec_for
from keptwork.jobs.breaker import Breaker
from keptwork.outcomes import TransientError
from keptwork.process.output import harmless
from keptwork.workers.tool_runner import Outcome, one_run, reviewed

if TYPE_CHECKING:
    from keptwork.settings import Config, Tool

Ask = Callable[[Request, int], Awaitable[Answer]]
"""Requests turn `n` of a conversation, counted from 1. A turn that was already answered returns its stored answer."""

MOST_AT_ONCE = 100
LONGEST_RESULT = 32 << 10
LONGEST_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a conversation: turns, tool uses, and seconds in one run of the job.

    A wait for an approval ends the run, so the seconds start again after it.
    """

    turns: int = 20
    tool_calls: int = 50
    seconds: float = 600.0


class Toolbox:
    """The tools that a skill allows, as keptwork.toml declares them. An undeclared tool raises `PermanentError`."""

    def __init__(self, config: Config, allowed: Iterable[str]) -> None:
        self._config = config
        self._profiles: Mapping[str, Tool] = {name: profile(name, config) for name in allowed}

    @property
    def offers(self) -> tuple[Offer, ...]:
        """The tools as a model sees them."""
        found = self._profiles.items()
        return tuple(Offer(name, tool.description or f"Runs {name}.", tool.takes.schema) for name, tool in found)

    def asked_for(self, use: ToolUse) -> tuple[Tool, ToolSpec]:
        """Return the tool that a model requests and the program it would run. Raise `Unfit` if the model must not use
        the tool, or if the arguments do not fit."""
        tool = self._profiles.get(use.name)
        if tool is None:
            raise Unfit(f"there is no tool of that name here; there are: {', '.join(self._profiles) or 'none'}")
        if not isinstance(use.arguments, Mapping):
            raise Unfit("the arguments have no names")
        given = dict(use.arguments)
        with Patterns() as patterns:
            problem = tool.takes.refusal(given, patterns.find)
        if problem is not None:
            raise Unfit(problem)
        argv, stdin = tool.takes.passed(given, tool.command)
        return tool, spec_for(use.name, self._config, argv, stdin)


async def converse(
    ctx: Context, request: Request, tools: Toolbox | None, limits: Limits, ask: Ask, round: int = 0
) -> Answer:
    """Return the answer of a model after it has used the tools it wants, within the limits.

    `round` numbers the conversations of a job: each round is a conversation of its own. Raise `BusinessFailure` if the
    model does not answer within the limits.
    """
    conversation, time = Conversation(ctx, tools, limits, round), asyncio.timeout(limits.seconds)
    try:
        async with time:
            return await conversation.answer(request, ask)
    except TimeoutError:
        if not time.expired():
            raise
        raise BusinessFailure(f"there was no answer within {limits.seconds:g} s") from None
    except AgentFailure as failure:
        failure.args = (current().text(str(failure)),)
        raise


class Conversation:
    """One conversation, in one run of its job."""

    def __init__(self, ctx: Context, tools: Toolbox | None, limits: Limits, round: int) -> None:
        self._ctx = ctx
        self._tools = tools
        self._limits = limits
        self._round = round
        self._uses = 0
        self._same: Counter[str] = Counter()

    async def answer(self, request: Request, ask: Ask) -> Answer:
        """Request turn after turn, until the model requests no more tools."""
        offers = self._tools.offers if self._tools is not None else ()
        messages = list(request.messages)
        for turn in range(1, self._limits.turns + 1):
            if self._ctx.cancel_requested:
                raise TransientError("the conversation was ended, as it was asked to stop")
            answer = await ask(replace(request, messages=tuple(messages), offers=offers), turn)
            if not answer.uses:
                return answer
            if turn < self._limits.turns:
                messages += [answer.message, *await self._results(turn, answer.uses)]
        raise BusinessFailure(f"after {self._limits.turns} turns the model still asked for tools instead of answering")

    async def _results(self, turn: int, uses: Sequence[ToolUse]) -> list[Message]:
        """Run the tools one after the other, because tools that a model requests together can depend on each other."""
        if len(uses) > MOST_AT_ONCE:
            raise BusinessFailure(f"the model asked for {len(uses):,} tools at once; {MOST_AT_ONCE} at most are run")
        repeated = Counter(use.id for use in uses)
        results = []
        for number, use in enumerate(uses, 1):
            self._uses += 1
            key = _key(use)
            self._same[key] += 1
            step, effect = f"tool {self._round}.{turn}.{number}", f"{key} {self._same[key]}"
            told = await self._ctx.step(step, self._told, use, effect, self._uses, repeated[use.id] > 1)
            results.append(message_of(told))
        return results

    async def _told(self, use: ToolUse, effect: str, count: int, repeated: bool) -> dict[str, Any]:
        """Return the message that reports a tool use to the model. It reports refused uses as well."""
        try:
            text = await self._used(use, effect, count, repeated)
        except (Unfit, TooSlow, ApprovalRejected, ApprovalExpired) as refusal:
            return _result(use, str(refusal), failed=True)
        except _Failed as failure:
            return _result(use, str(failure), failed=True)
        return _result(use, text)

    async def _used(self, use: ToolUse, effect: str, count: int, repeated: bool) -> str:
        if repeated:
            raise Unfit("two uses of tools had this id; each needs an id of its own")
        if count > self._limits.tool_calls:
            most = self._limits.tool_calls
            raise Unfit(f"all {most} uses of tools are spent: answer with what is known, without tools")
        if self._tools is None:
            raise Unfit("there are no tools here")
        tool, spec = await asyncio.to_thread(self._tools.asked_for, use)
        if tool.approval:
            await self._approved(use, spec, effect)
        outcome = await self._run(use.name, tool, spec, effect)
        if outcome.failure is not None:
            raise _Failed(outcome.failure)
        return _said(outcome.result or {})

    async def _approved(self, use: ToolUse, spec: ToolSpec, effect: str) -> None:
        """Wait until a reviewer approves exactly this run. A different program, different arguments, or another run of
        the same program needs another approval. A decision also holds for a later attempt of the job."""
        shown = {
            "tool": use.name,
            "arguments": dict(use.arguments),
            "command": list(spec.argv),
            "stdin": spec.stdin.decode(),
            "cwd": spec.cwd,
        }
        name = f"{digest_of(shown)} {effect}"
        await self._ctx.wait_for_approval(_question(spec), by=spec.review_by, details=shown, name=name)

    async def _run(self, name: str, tool: Tool, spec: ToolSpec, effect: str) -> Outcome:
        """Run a tool behind its circuit breaker. If a tool is not idempotent, a later attempt of the job does not
        repeat the same use."""
        given, breaker = tool.breaker, f"tool:{name}"
        wanted = (given.failure_threshold, given.cooldown_seconds, given.success_threshold)
        await self._ctx.breaker(Breaker(breaker, *wanted))
        try:
            outcome = await (
                one_run(self._ctx, spec) if spec.idempotent else reviewed(self._ctx, spec, f"{name} {effect}")
            )
        except TimeoutError as error:
            outcome = Outcome(failure=str(error), known=False)
        self._ctx.tell_breaker(breaker, outcome.known)
        return outcome


class _Failed(Exception):
    """A tool ran and failed."""


def _key(use: ToolUse) -> str:
    """Return a key that is equal for two uses of a tool with the same arguments."""
    try:
        said = json.dumps([use.name, use.arguments], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        said = use.name  # such a use never runs
    return sha256(said.encode()).hexdigest()[:32]


def _question(spec: ToolSpec) -> str:
    """Return the question with control characters removed for a terminal. The details hold the complete command."""
    command = harmless(shlex.join(spec.argv))
    return f"May the agent run {command[:LONGEST_SHOWN]}{'…' if len(command) > LONGEST_SHOWN else ''}?"


def _result(use: ToolUse, text: str, failed: bool = False) -> dict[str, Any]:
    told = current().text(text).replace("\0", "\ufffd")
    return document(Message(Role.TOOL, told, answers=use.id, failed=failed))


def _said(result: Mapping[str, Any]) -> str:
    """Return the output of a tool for the model, cut in the middle if it is long."""
    code = result.get("exit_code", 0)
    wrote = result.get("stdout") or result.get("stderr") or "It wrote nothing."
    return _cut(f"exit code {code}\n{wrote}" if code else str(wrote))


def _cut(text: str) -> str:
    half = LONGEST_RESULT // 2
    if len(text) <= LONGEST_RESULT:
        return text
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are left out here …]\n{text[-half:]}"

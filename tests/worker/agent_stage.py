"""Agents for tests: a model that follows a script, turns that are kept, and a tool that records what it was given."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from keptwork.agents import transcripts
from keptwork.agents.conversation import Answer, Message, Provider, Request, Role, Stop, Tell, ToolUse, Usage
from keptwork.agents.providers.redacting import Discreet
from keptwork.agents.tool_loop import Ask
from keptwork.agents.transcripts import document, message_of
from keptwork.context import Context
from keptwork.errors import LeaseLost
from keptwork.settings import Config
from keptwork.store import Transaction

Script = Callable[[Request], Answer]

RECORDER = r"""
import json, os, sys, tempfile
folder, tool = sys.argv[1:3]
said = {"tool": tool, "argv": sys.argv[3:], "stdin": sys.stdin.read(), "job": os.environ["KEPTWORK_JOB_ID"]}
with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, prefix="new-") as file:
    json.dump(said, file)
os.rename(file.name, file.name.replace("new-", "ran-"))
print("done", *sys.argv[3:])
"""


class Ran(NamedTuple):
    """A run of a tool, as the tool itself recorded it."""

    tool: str
    argv: tuple[str, ...]
    stdin: str
    job: str


def recorder(folder: Path, tool: str) -> list[str]:
    """The command of a tool that writes down what it was given."""
    return [sys.executable, "-I", "-S", "-c", RECORDER, str(folder), tool]


def recorded(folder: Path) -> list[Ran]:
    """Every run there was, the oldest first."""
    files = sorted(folder.glob("ran-*"), key=lambda file: file.stat().st_mtime_ns)
    found = [json.loads(file.read_text()) for file in files]
    return [Ran(one["tool"], tuple(one["argv"]), one["stdin"], one["job"]) for one in found]


TEXT = {"type": "string", "maxLength": 200_000}


def config(folder: Path, **tools: dict[str, Any]) -> Config:
    """Recorders: each takes a text, as its only argument unless something else is said."""
    usual = {"arguments": {"properties": {"text": TEXT}, "required": ["text"]}, "args": ["{text}"], "timeout": "1m"}
    profiles = {name: {"command": recorder(folder, name), **usual, **said} for name, said in tools.items()}
    return Config.model_validate({"tools": profiles})


@dataclass
class Scripted:
    """A provider whose model says what a script says; it counts how often it is called."""

    script: Script
    name: str = "offline"
    calls: list[Request] = field(default_factory=list)

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        self.calls.append(request)
        answer = self.script(request)
        if tell is not None:
            tell(answer.text)
        return answer


def lines(*answers: Answer) -> Script:
    """A model that says one thing after the other, whatever it is told; the last again and again."""

    def script(request: Request) -> Answer:
        said = sum(message.role is Role.ASSISTANT for message in request.messages)
        return answers[min(said, len(answers) - 1)]

    return script


def says(text: str) -> Answer:
    return Answer(text, "scripted", Usage(10, 5))


def uses(*asked: tuple[str, Any] | ToolUse, text: str = "") -> Answer:
    """An answer that asks for tools, each by name and what it is given."""
    found = [one if isinstance(one, ToolUse) else ToolUse(f"use-{n}", *one) for n, one in enumerate(asked)]
    return Answer(text, "scripted", Usage(10, 5), Stop.TOOLS, tuple(found))


def question(text: str = "Do it.", system: str = "You are careful.") -> Request:
    return Request("scripted", (Message(Role.USER, text),), system)


def kept_turns(
    ctx: Context, provider: Provider, round: int = 0, append: Any = transcripts.append, around: Any = None
) -> Ask:
    """Turns as an agent job makes them: asked once, and kept with what is added to the transcript."""
    discreet = Discreet(provider)

    async def ask(request: Request, n: int) -> Answer:
        name = ctx.steps.own_name("turn", f"{round}.{n}")
        kept = await ctx.steps.recall(name)
        if kept is not None:
            return _answer(json.loads(kept.result))
        if around is not None:
            around(f"before {n}")
        answer = await discreet.answer(request, lambda piece: ctx.progress(0.5, piece))
        if around is not None:
            around(f"answered {n}")
        save = ctx.steps.save_whole(name, json.dumps(document(answer.message)))

        async def work(tx: Transaction) -> None:
            if (await tx.checkpoint([save]))[0] is None:
                raise LeaseLost(lifecycle="job", id=ctx.job_id, trigger="checkpoint")
            await append(tx, ctx.job, request, answer, round=round)

        await ctx.ask(lambda store: store.atomically(work))
        if around is not None:
            around(f"kept {n}")
        return answer

    return ask


def _answer(said: dict[str, Any]) -> Answer:
    message = message_of(said)
    return Answer(message.text, "scripted", Usage(10, 5), Stop.TOOLS if message.uses else Stop.END, message.uses)


def heard(request: Request) -> Sequence[Message]:
    """What tools told a model."""
    return [message for message in request.messages if message.role is Role.TOOL]

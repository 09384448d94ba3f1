"""The messages of a conversation as they are written down: each one line of JSON, the same for the same message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from keptwork.agent.conversation import Answer, Message, Request, Role, ToolUse

SYSTEM = "system"
"""Who tells a model beforehand what it is to be. No message of the conversation, but what begins a transcript."""


class Place(NamedTuple):
    """A message as it is written down, and where it stands."""

    position: int
    said: dict[str, Any]


def added(request: Request, answer: Answer | None) -> list[Place]:
    """What a turn adds to the transcript: what was said to the model since it spoke last, and what it answered, if it
    did. The first turn adds what it was told beforehand as well, at place 0."""
    spoke = _last_answer(request.messages)
    first = [Place(0, {"role": SYSTEM, "text": request.system})] if spoke < 0 else []
    told = [Place(spoke + 2 + n, document(message)) for n, message in enumerate(request.messages[spoke + 1 :])]
    answered = [] if answer is None else [Place(len(request.messages) + 1, document(answer.message))]
    return [*first, *told, *answered]


def _last_answer(messages: Sequence[Message]) -> int:
    spoken = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
    return spoken[-1] if spoken else -1


def document(message: Message) -> dict[str, Any]:
    """A message as JSON can hold it; what is not said is left out."""
    said: dict[str, Any] = {"role": message.role.value, "text": message.text}
    if message.uses:
        said["uses"] = [{"id": use.id, "name": use.name, "arguments": dict(use.arguments)} for use in message.uses]
    if message.answers is not None:
        said["answers"] = message.answers
    return {**said, "failed": True} if message.failed else said


def message_of(said: dict[str, Any]) -> Message:
    """The message that was written down so."""
    uses = tuple(ToolUse(use["id"], use["name"], use["arguments"]) for use in said.get("uses", ()))
    return Message(Role(said["role"]), said["text"], uses, said.get("answers"), said.get("failed", False))


def line(said: dict[str, Any]) -> str:
    """What was said in one line, in ASCII: whatever it is, half of a character included, it can be kept.

    >>> line(document(Message(Role.USER, "hello")))
    '{"role":"user","text":"hello"}'
    """
    return json.dumps(said, separators=(",", ":"), sort_keys=True)

"""Conversation messages in stored form: one line of JSON each, the same for equal messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from keptwork.agents.conversation import Answer, Message, Request, Role, ToolUse

SYSTEM = "system"
"""The role of the system prompt. It is not a message of the conversation, but the start of a transcript."""


class Place(NamedTuple):
    """A message in stored form, with its position."""

    position: int
    said: dict[str, Any]


def added(request: Request, answer: Answer | None) -> list[Place]:
    """Return what a turn adds to the transcript. That is the messages since the model's last answer, and the new
    answer, if any. The first turn also adds the system prompt, at position 0."""
    spoke = _last_answer(request.messages)
    first = [Place(0, {"role": SYSTEM, "text": request.system})] if spoke < 0 else []
    told = [Place(spoke + 2 + n, document(message)) for n, message in enumerate(request.messages[spoke + 1 :])]
    answered = [] if answer is None else [Place(len(request.messages) + 1, document(answer.message))]
    return [*first, *told, *answered]


def _last_answer(messages: Sequence[Message]) -> int:
    spoken = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
    return spoken[-1] if spoken else -1


def document(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object without its empty fields."""
    said: dict[str, Any] = {"role": message.role.value, "text": message.text}
    if message.uses:
        said["uses"] = [{"id": use.id, "name": use.name, "arguments": dict(use.arguments)} for use in message.uses]
    if message.answers is not None:
        said["answers"] = message.answers
    return {**said, "failed": True} if message.failed else said


def message_of(said: dict[str, Any]) -> Message:
    """Return the message for such an object."""
    uses = tuple(ToolUse(use["id"], use["name"], use["arguments"]) for use in said.get("uses", ()))
    return Message(Role(said["role"]), said["text"], uses, said.get("answers"), said.get("failed", False))


def line(said: dict[str, Any]) -> str:
    """Return a message as one line of ASCII. It can be stored even if the text has unpaired surrogates.

    >>> line(document(Message(Role.USER, "hello")))
    '{"role":"user","text":"hello"}'
    """
    return json.dumps(said, separators=(",", ":"), sort_keys=True)

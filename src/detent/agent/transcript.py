"""The messages of a conversation as they are written down: each one line of JSON, the same for the same message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from detent.agent.conversation import Answer, Message, Request, Role, ToolUse

SYSTEM = "system"
"""Who tells a model beforehand what it is to be. No message of the conversation, but what begins a transcript."""


class Place(NamedTuple):
    """A message as it is written down, and where it stands."""

    position: int
    text: str


def added(request: Request, answer: Answer) -> list[Place]:
    """What a turn adds to the transcript: what was said to the model since it spoke last, and what it answered. The
    first turn adds what it was told beforehand as well, at place 0."""
    spoke = _last_answer(request.messages)
    lines = [Place(number + 1, line(message)) for number, message in enumerate(request.messages)][spoke + 1 :]
    first = [Place(0, _dumped({"role": SYSTEM, "text": request.system}))] if spoke < 0 else []
    return [*first, *lines, Place(len(request.messages) + 1, line(answer.message))]


def _last_answer(messages: Sequence[Message]) -> int:
    spoken = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
    return spoken[-1] if spoken else -1


def line(message: Message) -> str:
    """A message in one line.

    >>> line(Message(Role.USER, "hello"))
    '{"role":"user","text":"hello"}'
    """
    return _dumped(document(message))


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


def _dumped(said: dict[str, Any]) -> str:
    """In ASCII: whatever a model said, half of a character included, can be kept."""
    return json.dumps(said, separators=(",", ":"), sort_keys=True)

"""A provider that keeps no secrets: what goes to it and what comes from it passes a redactor first.

It stands before the real one, so that nothing behind it, be it kept, shown or logged, has to think of secrets: the
answer, the pieces it comes in, and what is said of a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from keptwork.agent.conversation import AgentFailure, Answer, Message, Provider, Request, Tell, ToolUse
from keptwork.agent.redaction import Redactor, current

LONGEST_WORD = 4_000
"""What goes on for longer than this without a break is told at the end."""


class Discreet:
    """The provider behind a redactor."""

    def __init__(self, provider: Provider, redactor: Callable[[], Redactor] = current) -> None:
        self.name = provider.name
        self._provider = provider
        self._redactor = redactor

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        redactor = self._redactor()
        pieces = None if tell is None else Pieces(redactor, tell)
        try:
            answer = await self._provider.answer(request_without(redactor, request), pieces.hear if pieces else None)
        except AgentFailure as failure:
            failure.args = (redactor.text(str(failure)),)
            raise failure from None  # what it came from may say the same
        if pieces is not None:
            pieces.end()
        return answer_without(redactor, answer)


_WHOLE = re.compile(r"[^A-Za-z0-9_./+=~:@%&#*$\\-][A-Za-z0-9_./+=~:@%&#*$\\-]*\Z")
"""From the last sign that is in no key: what follows may be a part of one."""


class Pieces:
    """What is told of an answer while it comes: word by word, for a secret may come in several pieces."""

    def __init__(self, redactor: Redactor, tell: Tell) -> None:
        self._redactor = redactor
        self._tell = tell
        self._heard = ""
        self._told = ""
        self._passed = 0

    def hear(self, piece: str) -> None:
        """Passes on whole words: with the next piece, the last one may turn out to be a secret."""
        self._heard += piece
        last = _WHOLE.search(self._heard, max(0, len(self._heard) - LONGEST_WORD))
        words = last.start() + 1 if last else 0
        words -= self._redactor.begun(self._heard[:words])
        if words > self._passed:
            self._passed = words
            self._pass_on(self._heard[:words])

    def end(self) -> None:
        """No more comes."""
        self._pass_on(self._heard)

    def _pass_on(self, text: str) -> None:
        safe = self._redactor.text(text)
        if safe.startswith(self._told) and len(safe) > len(self._told):
            self._tell(safe[len(self._told) :])
            self._told = safe


def request_without(redactor: Redactor, request: Request) -> Request:
    """A request without its secrets."""
    messages = tuple(message_without(redactor, message) for message in request.messages)
    return replace(request, messages=messages, system=redactor.text(request.system))


def answer_without(redactor: Redactor, answer: Answer) -> Answer:
    """An answer without its secrets; what a tool is to be given is part of it."""
    return replace(answer, text=redactor.text(answer.text), uses=_uses_without(redactor, answer.uses))


def message_without(redactor: Redactor, message: Message) -> Message:
    """A message without its secrets."""
    return replace(message, text=redactor.text(message.text), uses=_uses_without(redactor, message.uses))


def _uses_without(redactor: Redactor, uses: tuple[ToolUse, ...]) -> tuple[ToolUse, ...]:
    return tuple(ToolUse(redactor.text(use.id), use.name, redactor.value(use.arguments)) for use in uses)

"""A provider wrapper that removes secrets from requests and answers.

It wraps the real provider, so that no code after it must handle secrets, whether it stores, shows, or logs the text.
The wrapper covers the answer, the pieces it arrives in, and the message of a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from keptwork.agents.conversation import AgentFailure, Answer, Message, Provider, Request, Tell, ToolUse
from keptwork.core.secrets import Redactor, current

LONGEST_WORD = 4_000
"""Text without a break that is longer than this is passed on only at the end."""


class Discreet:
    """A provider behind a redactor."""

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
            raise failure from None  # its cause might contain the same secret
        if pieces is not None:
            pieces.end()
        return answer_without(redactor, answer)


_WHOLE = re.compile(r"[^A-Za-z0-9_./+=~:@%&#*$\\-][A-Za-z0-9_./+=~:@%&#*$\\-]*\Z")
"""The part from the last character that no key contains. The text after that character can be part of a key."""


class Pieces:
    """Passes an answer on word by word as it arrives, since a secret can arrive in several pieces."""

    def __init__(self, redactor: Redactor, tell: Tell) -> None:
        self._redactor = redactor
        self._tell = tell
        self._heard = ""
        self._told = ""
        self._passed = 0

    def hear(self, piece: str) -> None:
        """Pass on whole words. The last word stays back, because the next piece can turn it into a secret."""
        self._heard += piece
        last = _WHOLE.search(self._heard, max(0, len(self._heard) - LONGEST_WORD))
        words = last.start() + 1 if last else 0
        words -= self._redactor.begun(self._heard[:words])
        if words > self._passed:
            self._passed = words
            self._pass_on(self._heard[:words])

    def end(self) -> None:
        """Pass on the rest of the answer."""
        self._pass_on(self._heard)

    def _pass_on(self, text: str) -> None:
        safe = self._redactor.text(text)
        if safe.startswith(self._told) and len(safe) > len(self._told):
            self._tell(safe[len(self._told) :])
            self._told = safe


def request_without(redactor: Redactor, request: Request) -> Request:
    """Return a request without its secrets."""
    messages = tuple(message_without(redactor, message) for message in request.messages)
    return replace(request, messages=messages, system=redactor.text(request.system))


def answer_without(redactor: Redactor, answer: Answer) -> Answer:
    """Return an answer without its secrets, including those in tool arguments."""
    return replace(answer, text=redactor.text(answer.text), uses=_uses_without(redactor, answer.uses))


def message_without(redactor: Redactor, message: Message) -> Message:
    """Return a message without its secrets."""
    return replace(message, text=redactor.text(message.text), uses=_uses_without(redactor, message.uses))


def _uses_without(redactor: Redactor, uses: tuple[ToolUse, ...]) -> tuple[ToolUse, ...]:
    return tuple(ToolUse(redactor.text(use.id), use.name, redactor.value(use.arguments)) for use in uses)

"""The conversation between an agent and a model: messages, offered tools, answers, and token usage.

All providers implement one small protocol. A provider makes one call and does not retry it. An error is one of two
failures, and the caller decides what follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from keptwork.outcomes import TransientError

Tell = Callable[[str], None]
"""A callback for each piece of the answer as it arrives."""


class Role(StrEnum):
    """The author of a message. The results of tools have the role `TOOL`."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call requested by a model. Its arguments are data, whatever their content."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `answers` is the ID of the tool use that this is the result of, and `failed` means that the tool
    failed."""

    role: Role
    text: str = ""
    uses: tuple[ToolUse, ...] = ()
    answers: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that a model can call. `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One call, with everything the provider needs. A provider remembers nothing from earlier calls."""

    model: str
    messages: tuple[Message, ...]
    system: str = ""
    max_tokens: int = 4096
    offers: tuple[Offer, ...] = ()
    key: str = ""  # identical in every attempt of one call, for providers with idempotency keys


class Usage(NamedTuple):
    """The tokens of a call. Tokens read from and written to the provider's cache are not in `input`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


NOTHING = Usage()


class Stop(StrEnum):
    """The reason why a model stopped."""

    END = "end"
    TOOLS = "tools"
    LENGTH = "length"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a model to a request. `model` is the one that answered, as the provider names it."""

    text: str
    model: str
    usage: Usage = NOTHING
    stop: Stop = Stop.END
    uses: tuple[ToolUse, ...] = ()
    request_id: str | None = None

    @property
    def message(self) -> Message:
        """The message with which the answer continues the conversation."""
        return Message(Role.ASSISTANT, self.text, self.uses)


class Provider(Protocol):
    """A client that makes calls to models."""

    name: str
    """The provider's name in genai-prices (`anthropic` or `openai`), or `offline`."""

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        """Make one attempt of a call. Raise `SystemFailure` or `BusinessFailure` if it fails."""
        ...


class AgentFailure(TransientError):
    """A failed call or an unusable answer, which can be retried. `usage` is what the provider counted nevertheless, or
    None if it has not reported it. `sent` is False only if no model has seen the request."""

    def __init__(self, what: str, *, usage: Usage | None = None, model: str | None = None, sent: bool = True) -> None:
        super().__init__(what)
        self.usage = usage
        self.model = model
        self.sent = sent
        self.delay_us: int | None = None


class SystemFailure(AgentFailure):
    """The provider is unreachable, overloaded, or failing. It can state how long to wait."""

    def __init__(self, what: str, *, retry_after_us: int | None = None, **rest: Any) -> None:
        super().__init__(what, **rest)
        self.retry_after_us = retry_after_us


class BusinessFailure(AgentFailure):
    """The answer is unusable: truncated, refused, or not in the required form."""


# A request as one text. It is the same for equal requests, and never shorter than the text that a provider
# receives.


def spelled(request: Request) -> str:
    """Return everything that affects the answer as JSON. The idempotency key of the call is not part of it."""
    said = {field.name: getattr(request, field.name) for field in fields(request) if field.name != "key"}
    return json.dumps(said, ensure_ascii=False, sort_keys=True, default=_plain)


def _plain(value: object) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no part of a request")


# Time and size limits of a call.


class Limits(NamedTuple):
    """Seconds for the connection, seconds for the whole call, and bytes for the reply."""

    connect: float = 10
    total: float = 120
    most_bytes: int = 4 << 20


USUAL = Limits()

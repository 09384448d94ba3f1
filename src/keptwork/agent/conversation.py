"""What is said between an agent and a model: messages, the tools it is offered, its answers, and what it used.

One small protocol stands before every provider. A provider makes one call and tries nothing again: what went wrong is
one of two failures, and who called decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from keptwork.outcomes import TransientError

Tell = Callable[[str], None]
"""Is given each piece of the answer as it comes."""


class Role(StrEnum):
    """Who says something. What a tool gave back is said by `TOOL`."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A model asks for a tool. What it wants to give it is data, whatever stands in it."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """Something that was said. `answers` names the use of a tool that this is the outcome of; `failed`, that it went
    wrong."""

    role: Role
    text: str = ""
    uses: tuple[ToolUse, ...] = ()
    answers: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool a model may ask for; `schema` says in JSON Schema what it takes."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One call: everything the provider needs, and nothing it remembers from before."""

    model: str
    messages: tuple[Message, ...]
    system: str = ""
    max_tokens: int = 4096
    offers: tuple[Offer, ...] = ()
    key: str = ""  # the same for every try of one call, for those who keep such keys


class Usage(NamedTuple):
    """How many tokens a call took. Those read from and written to the provider's cache are not in `input`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


NOTHING = Usage()


class Stop(StrEnum):
    """Why a model said no more."""

    END = "end"
    TOOLS = "tools"
    LENGTH = "length"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said to a request. `model` is the one that answered, as the provider names it."""

    text: str
    model: str
    usage: Usage = NOTHING
    stop: Stop = Stop.END
    uses: tuple[ToolUse, ...] = ()
    request_id: str | None = None

    @property
    def message(self) -> Message:
        """As it stands in the conversation."""
        return Message(Role.ASSISTANT, self.text, self.uses)


class Provider(Protocol):
    """Makes calls to models."""

    name: str
    """As genai-prices knows it: `anthropic`, `openai`, or `offline`."""

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        """One call, tried once. What goes wrong is a `SystemFailure` or a `BusinessFailure`."""
        ...


class AgentFailure(TransientError):
    """A call, or what came of it, was no good; it may be tried again. `usage` is what the provider counted for it all
    the same, none if it has not said. `sent` is false where it is certain that no model has seen the request."""

    def __init__(self, what: str, *, usage: Usage | None = None, model: str | None = None, sent: bool = True) -> None:
        super().__init__(what)
        self.usage = usage
        self.model = model
        self.sent = sent
        self.delay_us: int | None = None


class SystemFailure(AgentFailure):
    """The provider cannot be reached, has too much to do, or failed. It may say how long to leave it alone."""

    def __init__(self, what: str, *, retry_after_us: int | None = None, **rest: Any) -> None:
        super().__init__(what, **rest)
        self.retry_after_us = retry_after_us


class BusinessFailure(AgentFailure):
    """There is an answer, and it is not what was asked for: cut off, refused, not of the wanted form."""

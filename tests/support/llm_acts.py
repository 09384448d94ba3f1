"""What the server of tests.support.llm_server can be told to do, and what it is asked. It says what is what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keptwork.agents.conversation import Usage

MESSAGES, CHAT = "messages", "chat"


@dataclass(frozen=True, slots=True)
class Say:
    """An answer; with `uses` it asks for tools, each a name and what it is to be given."""

    text: str = "ok"
    usage: Usage | None = None
    stop: str = "end"
    uses: tuple[tuple[str, Mapping[str, Any] | str], ...] = ()
    model: str | None = None
    piece: int = 20
    same_id: bool = False


def use(name: str, arguments: Mapping[str, Any] | str, text: str = "", usage: Usage | None = None) -> Say:
    """An answer that asks for a tool."""
    return Say(text, usage, "tools", ((name, arguments),))


@dataclass(frozen=True, slots=True)
class Status:
    """An error, which costs nothing."""

    code: int
    retry_after: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "the server says no"


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer, or, `begun`, one that never ends."""

    begun: bool = False


@dataclass(frozen=True, slots=True)
class Lose:
    """The connection is closed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer that breaks off after so many of its frames; `clean` if the connection says that this was all."""

    text: str = "this answer does not come to its end"
    after: int = 3
    clean: bool = False
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class BadJson:
    """An answer in which the third frame is no JSON."""

    text: str = "this answer is damaged"


@dataclass(frozen=True, slots=True)
class Large:
    """An answer of so many bytes, in many lines or in one."""

    size: int = 10 << 20
    lines: bool = True


@dataclass(frozen=True, slots=True)
class Drip:
    """An answer that comes a byte at a time."""

    text: str = "slow " * 100
    every: float = 0.05


@dataclass(frozen=True, slots=True)
class Raw:
    """Whatever it is."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Act = Say | Status | Hang | Lose | Cut | BadJson | Large | Drip | Raw


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    number: int
    api: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def said(self) -> str:
        """What the last message says."""
        return _text(self.body["messages"][-1].get("content"))

    @property
    def results(self) -> list[str]:
        """What tools gave back, as far as it stands in this request, in order."""
        found = []
        for message in self.body["messages"]:
            if message["role"] == "tool":
                found.append(_text(message["content"]))
            elif isinstance(message["content"], list):
                found += [_text(one["content"]) for one in message["content"] if one["type"] == "tool_result"]
        return found

    @property
    def tools(self) -> list[str]:
        """The names of the tools it offers."""
        return [str(one.get("name") or one["function"]["name"]) for one in self.body.get("tools", [])]

    @property
    def tokens(self) -> int:
        return tokens(json.dumps([self.body.get(name) for name in ("system", "messages", "tools")]))


def tokens(text: str) -> int:
    return -(-len(text) // 4)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_text(one.get("text", one.get("content", ""))) for one in content)
    return str(content or "")

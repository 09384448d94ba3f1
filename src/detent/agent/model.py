"""What answers an agent's step: one small protocol, and the model that needs neither key nor network."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from detent.agent.conversation import Answer, Request, Tell, Usage

MOST_LINES, LONGEST_LINE = 3, 160


class Reply(NamedTuple):
    """What a model said, and what that cost in micro-USD."""

    text: str
    model: str
    cost_micros: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Model(Protocol):
    """Answers a prompt."""

    async def reply(self, prompt: str, tier: str) -> Reply:
        """What it says to a prompt, asked of a tier of models."""
        ...


class OfflineModel:
    """Answers without a network: the first lines of what it was given, labelled as what they are. It costs nothing, and
    says the same every time."""

    async def reply(self, prompt: str, tier: str) -> Reply:
        lines = [line.strip() for line in prompt.splitlines() if line.strip()] or ["nothing was asked"]
        shown = [line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..." for line in lines[:MOST_LINES]]
        text = "\n".join(["[offline model: no provider key is set]", *shown])
        return Reply(text, f"offline-{tier}", 0, len(prompt) // 4, len(text) // 4)


class Offline:
    """The same behind the protocol of providers."""

    name = "offline"

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        reply = await OfflineModel().reply(request.messages[-1].text, request.model.removeprefix("offline-"))
        if tell is not None:
            tell(reply.text)
        return Answer(reply.text, reply.model, Usage(reply.input_tokens, reply.output_tokens))

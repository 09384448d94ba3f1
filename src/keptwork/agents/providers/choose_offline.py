"""The provider that needs neither a key nor a network."""

from __future__ import annotations

from keptwork.agents.conversation import Answer, Request, Role, Tell, Usage

MOST_LINES, LONGEST_LINE = 3, 160
LABEL = "[offline model: no provider key is set]"


class Offline:
    """Answers with the first lines of the prompt, labelled as offline. It costs nothing, calls no tools, and always
    gives the same answer."""

    name = "offline"

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        asked = next((one.text for one in reversed(request.messages) if one.role is Role.USER), "")
        lines = [line.strip() for line in asked.splitlines() if line.strip()] or ["nothing was asked"]
        text = "\n".join([LABEL, *map(_shortened, lines[:MOST_LINES])])
        if tell is not None:
            tell(text)
        return Answer(text, request.model, Usage(len(asked) // 4, len(text) // 4))


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."

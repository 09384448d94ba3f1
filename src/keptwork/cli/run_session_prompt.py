"""Ask the user at the terminal for a decision: show the request and exactly what an approval starts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keptwork.cli import screen
from keptwork.flows import approvals
from keptwork.flows.expression import as_text

if TYPE_CHECKING:
    from keptwork.store.contract.waits_approvals import Approval

LONGEST = 160
ANSWERS = {
    "y": approvals.APPROVED,
    "yes": approvals.APPROVED,
    "n": approvals.REJECTED,
    "no": approvals.REJECTED,
    "s": None,
    "skip": None,
}


def at_a_terminal() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin.isatty()


async def asked(question: Approval, now: int) -> str | None:
    """Ask for a decision and return it, or None if the request stays open."""
    text = "\n".join(shown(question, now))
    while screen.write(f"{text}\n  approve? y/n/skip: ", sys.stdout, end=""):
        said = await _line()
        if said is None:
            screen.write("", sys.stdout)
            return None
        if said.strip().lower() in ANSWERS:
            return ANSWERS[said.strip().lower()]
        text = "  y approves, n rejects, skip leaves it open for later."
    return None  # a request that cannot be shown must not be decided


def shown(question: Approval, now: int) -> Iterator[str]:
    """Yield the lines of a request: its question, and what an approval starts."""
    terms = [f"for {question.scope}"] if question.scope else []
    if question.expires_at is not None:
        terms.append(f"expires {screen.ago(question.expires_at, now)}")
    yield f"? {question.step}: {question.question}" + (f" ({', '.join(terms)})" if terms else "")
    details = None if question.details is None else json.loads(question.details)
    actions = details if isinstance(details, list) else [details] if details else []
    for action in actions:
        yield f"  then {_action(action)}"


def _action(action: Any) -> str:
    if isinstance(action, dict) and "step" in action:
        rest = {name: value for name, value in action.items() if name != "step"}
        return _short(f"{action['step']}: {_plain(rest)}")
    return _short(_plain(action))


def _plain(said: Any) -> str:
    """Return a value as it is written in a flow: `call: shop:ship, with: {…}`."""
    if not isinstance(said, dict):
        return json.dumps(said, ensure_ascii=False)
    return ", ".join(f"{key}: {as_text(value)}" for key, value in said.items())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


async def _line() -> str | None:
    """Return the next typed line, or None at the end of input. A cancelled call leaves the input unread."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        if not typed.done():
            typed.set_result(os.read(descriptor, 4096))

    loop.add_reader(descriptor, read)
    try:
        return (await typed).decode("utf-8", "replace") or None
    finally:
        loop.remove_reader(descriptor)

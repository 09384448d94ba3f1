"""What was asked, what came back, and what was wrong with it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass
class Findings:
    """Counted as the answers come."""

    known: frozenset[str] = frozenset()
    statuses: Counter[int] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    chains: int = 0
    without_key: int = 0
    staged: int = 0
    not_staged: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        return sum(self.statuses.values())

    @property
    def never_did(self) -> list[str]:
        """Routes that refused whatever they were asked."""
        return sorted(self.known - set(self.did))

    def note(self, label: str, status: int, text: str) -> None:
        """An answer came."""
        self.statuses[status] += 1
        self.routes[label] += 1
        if status < 400:
            self.did[label] += 1
        else:
            self.refusals[label][f"{status} {problem(text)}"] += 1

    def told(self) -> str:
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.asked:,} requests to {len(self.routes)} of {len(self.known)} routes, {self.chains:,} chains among"
            f" them, and {self.without_key:,} without a key; {self.staged:,} more made things to ask about\n"
            f"answers: {statuses}\n"
            f"{len(self.did)} routes did what they were asked, {len(self.never_did)} never did"
            + "".join(f"\n  {label}: {self._refused(label)}" for label in self.never_did)
            + "".join(f"\nnot made, {count} times: {what}" for what, count in self.not_staged.items())
            + f"\n{len(self.wrong)} kinds of wrong answers"
            + "".join(f"\n\n{where}\n{what}" for where, what in self.wrong.items())
        )

    def _refused(self, label: str) -> str:
        most = self.refusals[label].most_common(1)
        return f"{most[0][0]}, {most[0][1]:,} of {self.routes[label]:,} times" if most else "never asked"


def problem(text: str) -> str:
    """Which of our problems it is."""
    with suppress(ValueError, AttributeError):
        return str(json.loads(text).get("type", "")).rpartition(":")[2]
    return "no problem document"

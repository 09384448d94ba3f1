"""What a parameter is given: mostly something of its own noun, and on a whim something else, so that refusals stay
covered."""

from __future__ import annotations

import random
from urllib.parse import quote

from tests.http.fuzz.things import MESSAGE, Things

NOUNS = {
    "jobs": ("job",),
    "dead-letters": ("job",),
    "workers": ("w",),
    "runs": ("run",),
    "workstreams": ("ws",),
    "steps": ("step",),
    "approvals": ("apr",),
    "crews": ("crew",),
    "webhooks": (MESSAGE,),
    "agent-jobs": ("agent",),
    "keys": ("key",),
    "why": ("job", "run", "ws", "step", "crew", "agent"),
    "flow": ("run", "ws"),
    "job": ("job",),
    "parent_id": ("crew",),
}
"""What the id after each word of an address is of, and that in each parameter and field."""

FIXED = {"budgets": ("tenant", "today"), "lifecycles": ("job", "worker", "run-step")}
"""Names that no list tells."""

PARTS = {"checkpoints": "steps", "artifacts": "artifacts"}
"""What a job keeps, and the word under which it is listed."""


class Choices:
    """Of one fuzzer; `whim` is how often something is of another noun, or as it was made up."""

    def __init__(self, things: Things, chance: random.Random, whim: float) -> None:
        self.things, self.random, self._whim = things, chance, whim

    def mostly(self) -> bool:
        """True, but on a whim."""
        return self.random.random() >= self._whim

    def in_address(self, noun: str, asker: str, made_up: str) -> str:
        """What stands after this word of an address."""
        found = self.given(noun, asker)
        return made_up if found is None else quote(found, safe="")

    def given(self, noun: str, asker: str) -> str | None:
        """An id or a name, mostly of this noun; none if there is none, or what was made up is good enough."""
        if self.mostly():
            return self.own(noun, asker)
        return self.things.any() if self.random.random() < 0.5 else None

    def own(self, noun: str, asker: str) -> str | None:
        """An id or a name of this noun."""
        if noun in FIXED and self.random.random() < 0.8:
            return self.random.choice(FIXED[noun])
        if noun == "budgets":
            return self.own("flow", asker)
        if noun in NOUNS:
            state = "dead_lettered" if noun == "dead-letters" else None
            return self.things.one(self.random.choice(NOUNS[noun]), asker, state)
        return self.things.name(PARTS.get(noun, noun))

"""Chooses the skill for a task and the tier of models, by readable rules that explain the choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from keptwork.agents.skills import DEFAULT, Skill


class Tier(StrEnum):
    """The capability of a model, cheapest first."""

    HAIKU = "haiku"
    SONNET = "sonnet"
    OPUS = "opus"

    @property
    def above(self) -> Tier | None:
        """The next more capable tier, or None for the last."""
        order = list(Tier)
        return order[order.index(self) + 1] if self is not order[-1] else None


class Score(NamedTuple):
    """The points of a skill, and the words that earned them."""

    skill: Skill
    points: int
    words: tuple[str, ...]


class Routed(NamedTuple):
    """The chosen skill, every score, and the reason."""

    skill: Skill
    scores: list[Score]
    why: str


def route(text: str, skills: Sequence[Skill]) -> Routed:
    """Return the skill with the most points: one for each word of its keywords in the text. The first skill wins a
    tie. If no skill has a point, return the default skill.

    >>> from keptwork.agents.skills import BUILT_IN
    >>> route("Fix the crash in the parser", BUILT_IN).skill.name
    'bug_fix'
    """
    scores = [_score(text.lower(), skill) for skill in skills]
    best = max(scores, key=lambda score: score.points)
    if best.points:
        tied = [score.skill.name for score in scores if score.points == best.points]
        why = f"{best.points} for {', '.join(best.words)}"
        return Routed(best.skill, scores, why + (f"; as many as {', '.join(tied[1:])}, and first" if tied[1:] else ""))
    default = next((skill for skill in skills if skill.name == DEFAULT), skills[-1])
    return Routed(default, scores, "no keyword of any skill stands in the text")


def _score(text: str, skill: Skill) -> Score:
    found = tuple(word for word in skill.keywords if re.search(rf"(?<!\w){re.escape(word)}s?(?!\w)", text))
    return Score(skill, sum(len(word.split()) for word in found), found)


# Words that make a task harder, and their points.
_HARD = {
    "architecture": 3,
    "design": 2,
    "migrate": 2,
    "migration": 2,
    "concurrency": 3,
    "distributed": 3,
    "security": 2,
    "performance": 2,
    "optimise": 2,
    "optimize": 2,
    "algorithm": 2,
    "across": 1,
    "several": 1,
    "all": 1,
    "prove": 3,
}
_LONG = ((2_000, 3), (500, 2), (200, 1))
_SONNET_FROM, _OPUS_FROM = 2, 5


class Graded(NamedTuple):
    """The tier for a task, its points, and the reason."""

    tier: Tier
    points: int
    why: str


def grade(text: str) -> Graded:
    """Return the tier for a task by its length, and by words that suggest difficulty.

    >>> grade("Fix a typo").tier, grade("Design the migration to a distributed queue, prove that it is safe").tier
    (<Tier.HAIKU: 'haiku'>, <Tier.OPUS: 'opus'>)
    """
    words = set(re.findall(r"[a-z]+", text.lower()))
    hard = {word: points for word, points in _HARD.items() if word in words}
    long = next((points for length, points in _LONG if len(text) >= length), 0)
    points = sum(hard.values()) + long
    tier = Tier.OPUS if points >= _OPUS_FROM else Tier.SONNET if points >= _SONNET_FROM else Tier.HAIKU
    reasons = [f"{word} ({n})" for word, n in hard.items()] + ([f"{len(text):,} characters ({long})"] if long else [])
    return Graded(tier, points, f"{points} for {', '.join(reasons)}" if reasons else "nothing in it looks hard")

"""Which skill a task is for, and which tier of models: by rules that can be read, and that say why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from keptwork.agent.skill import DEFAULT, Skill


class Tier(StrEnum):
    """How capable a model is asked for; the cheapest first."""

    HAIKU = "haiku"
    SONNET = "sonnet"
    OPUS = "opus"

    @property
    def above(self) -> Tier | None:
        """The next more capable one; none above the last."""
        order = list(Tier)
        return order[order.index(self) + 1] if self is not order[-1] else None


class Score(NamedTuple):
    """How many points a skill has, and the words they are for."""

    skill: Skill
    points: int
    words: tuple[str, ...]


class Routed(NamedTuple):
    """The skill that was chosen, every score, and why."""

    skill: Skill
    scores: list[Score]
    why: str


def route(text: str, skills: Sequence[Skill]) -> Routed:
    """The skill with the most points: one for each word of its keywords that stands in the text. A tie goes to the one
    that stands first; where none has a point, the default is for everything.

    >>> from keptwork.agent.skill import BUILT_IN
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


# What makes a task harder, and by how much.
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
    """The tier a task is worth, its points, and why."""

    tier: Tier
    points: int
    why: str


def grade(text: str) -> Graded:
    """The tier for a task by how hard it looks: its length, and words that point to hard things.

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

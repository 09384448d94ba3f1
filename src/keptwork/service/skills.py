"""The skills of agents as they are read outside: one by its name, and which one a task would go to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from keptwork.agent.routing import Graded, Routed, grade, route
from keptwork.agent.skill import Skill
from keptwork.errors import NotFound


class Chosen(NamedTuple):
    """The skill that a task would go to, and the tier of models."""

    routed: Routed
    graded: Graded


def find(skills: Sequence[Skill], name: str) -> Skill:
    """A skill by its name."""
    found = next((skill for skill in skills if skill.name == name), None)
    if found is None:
        raise NotFound(what="skill", id=repr(name), listing="keptwork skills list")
    return found


def routed(text: str, skills: Sequence[Skill]) -> Chosen:
    """What would be chosen for a task; nothing is started."""
    return Chosen(route(text, skills), grade(text))


def as_json(skill: Skill) -> dict[str, Any]:
    """A skill without what the model is told, which may be long."""
    return {
        "name": skill.name,
        "description": skill.description,
        "keywords": list(skill.keywords),
        "tools": list(skill.tools),
        "output_schema": skill.output_schema,
        "source": skill.source,
    }


def routed_json(chosen: Chosen) -> dict[str, Any]:
    """The choice, with every score and why."""
    routed, graded = chosen
    scores = [{"skill": one.skill.name, "points": one.points, "keywords": list(one.words)} for one in routed.scores]
    tier = {"tier": str(graded.tier), "points": graded.points, "why": graded.why}
    return {"skill": routed.skill.name, "why": routed.why, "scores": scores, "model": tier}

"""The skills of agents: find one by name, and show which one a task would use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from keptwork.agents.skills import Skill
from keptwork.agents.skills_routing import Graded, Routed, grade, route
from keptwork.errors import NotFound


class Chosen(NamedTuple):
    """The skill and the tier of models that a task would use."""

    routed: Routed
    graded: Graded


def find(skills: Sequence[Skill], name: str) -> Skill:
    """Return a skill by its name, or raise `NotFound`."""
    found = next((skill for skill in skills if skill.name == name), None)
    if found is None:
        raise NotFound(what="skill", id=repr(name), listing="keptwork skills list")
    return found


def routed(text: str, skills: Sequence[Skill]) -> Chosen:
    """Return the choice for a task, without starting anything."""
    return Chosen(route(text, skills), grade(text))


def as_json(skill: Skill) -> dict[str, Any]:
    """Return a skill in its public form, without its prompt, which can be long."""
    return {
        "name": skill.name,
        "description": skill.description,
        "keywords": list(skill.keywords),
        "tools": list(skill.tools),
        "output_schema": skill.output_schema,
        "source": skill.source,
    }


def routed_json(chosen: Chosen) -> dict[str, Any]:
    """Return a choice with every score and the reasons."""
    routed, graded = chosen
    scores = [{"skill": one.skill.name, "points": one.points, "keywords": list(one.words)} for one in routed.scores]
    tier = {"tier": str(graded.tier), "points": graded.points, "why": graded.why}
    return {"skill": routed.skill.name, "why": routed.why, "scores": scores, "model": tier}

"""Skills of agents: the built-in skills and the user's own.

A user's skill is a directory with a file SKILL.md. The front matter, between two lines of `---`, has its name,
description, keywords, allowed tools, and requirements for answers (a schema, patterns that must or must not match, and
a function that checks them). The rest of the file is the model's instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from keptwork.agents import json_schema
from keptwork.agents.json_schema import Schema
from keptwork.errors import BadInput, NotFound

FILE = "SKILL.md"
MOST_BYTES = 256 << 10
MOST_SKILLS = 1_000
_MARK = "---"


@dataclass(frozen=True, slots=True)
class Skill:
    """A task that an agent can do. `source` is the file of the skill, and None for a built-in one."""

    name: str
    description: str
    keywords: tuple[str, ...] = ()
    instructions: str = ""
    tools: tuple[str, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    source: str | None = None
    must_match: tuple[str, ...] = ()
    must_not_match: tuple[str, ...] = ()
    check: str | None = None


DEFAULT = "code_generation"

# The order decides ties. The last skill is the default.
BUILT_IN = (
    Skill(
        "testing",
        "Write or mend tests",
        ("test", "testing", "unit test", "integration test", "coverage", "pytest", "assert", "regression"),
        "You write tests that would fail if the behaviour were wrong. Name each after what it shows.",
    ),
    Skill(
        "refactoring",
        "Change how code is written, not what it does",
        ("refactor", "refactoring", "clean up", "restructure", "rename", "simplify", "extract", "deduplicate"),
        "You change the shape of code and keep its behaviour. Make small steps, and say what stays the same.",
    ),
    Skill(
        "documentation",
        "Explain something to its readers",
        ("document", "documentation", "docs", "readme", "docstring", "changelog", "explain", "summarise", "summarize"),
        "You write for the reader: what it is, how to use it, an example. Plain words, no filler.",
    ),
    Skill(
        "bug_fix",
        "Find out why something is wrong, and mend it",
        ("bug", "fix", "error", "crash", "exception", "traceback", "fails", "failing", "broken", "wrong"),
        "You find the cause before you change anything. Say what was wrong, why, and how to see that it is mended.",
    ),
    Skill(
        DEFAULT,
        "Write new code",
        ("implement", "write", "create", "add", "build", "generate", "feature", "function", "class", "endpoint"),
        "You write code that is complete, plain and safe to run.",
    ),
)


class _Front(BaseModel):
    """The fields of the front matter."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    description: Annotated[str, Field(min_length=1, max_length=1_000)]
    keywords: Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=200)] = []
    allowed_tools: Annotated[list[str], Field(max_length=100, alias="allowed-tools")] = []
    output_schema: Annotated[dict[str, Any] | None, Field(alias="output-schema")] = None
    must_match: Annotated[list[str], Field(max_length=20, alias="must-match")] = []
    must_not_match: Annotated[list[str], Field(max_length=20, alias="must-not-match")] = []
    check: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_.]+:[A-Za-z0-9_.]+$", max_length=400)] = None


def skills(folder: Path | None) -> list[Skill]:
    """Return the user's skills by name, then the built-in ones that they do not replace, in order."""
    own = sorted(_own(folder), key=lambda skill: skill.name) if folder is not None and folder.is_dir() else []
    names = [skill.name for skill in own]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(what=f"there are two skills called {name} in {folder}; give one of them another name")
    return [*own, *(skill for skill in BUILT_IN if skill.name not in names)]


def _own(folder: Path) -> Iterator[Skill]:
    files = sorted(folder.glob(f"*/{FILE}"))
    if len(files) > MOST_SKILLS:
        raise BadInput(what=f"{folder} holds {len(files):,} skills; {MOST_SKILLS:,} at most are read")
    yield from (read(file) for file in files)


def read(file: Path) -> Skill:
    """Return the skill in a file. Raise `BadInput` with the place and the expected value if it is invalid."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise BadInput(what=f"{file} is larger than {MOST_BYTES >> 10} KiB")
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(what=f"{file} cannot be read: {error}") from None
    front, body = _parts(file, text)
    try:
        said = _Front.model_validate(front)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(what=f"{file}: {where}: {first['msg'].lower()}") from None
    return _checked(file, said, body.strip())


def _checked(file: Path, said: _Front, body: str) -> Skill:
    """Return the skill if its requirements for answers are valid. Its own check function is loaded only when needed."""
    try:
        if said.output_schema is not None:
            Schema(said.output_schema)
        for pattern in (*said.must_match, *said.must_not_match):
            json_schema.check(pattern)
    except BadInput as refusal:
        raise BadInput(what=f"{file}: {refusal}") from None
    return Skill(
        said.name,
        said.description,
        tuple(dict.fromkeys(word.lower() for word in said.keywords)),
        body,
        tuple(said.allowed_tools),
        said.output_schema,
        str(file),
        tuple(said.must_match),
        tuple(said.must_not_match),
        said.check,
    )


def _parts(file: Path, text: str) -> tuple[Any, str]:
    """Return the front matter as data, and the text after it."""
    import yaml  # not needed without skills of the user's own

    from keptwork.flows import document

    head, mark, rest = text.lstrip("\ufeff").partition("\n")
    front, end, body = rest.partition(f"\n{_MARK}")
    if head.strip() != _MARK or not mark or not end:
        raise BadInput(what=f"{file}: it begins with front matter between two lines of {_MARK}")
    try:
        return document.load(front), body.partition("\n")[2]
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        raise BadInput(what=f"{file}:{line}: the front matter is no YAML: {getattr(error, 'problem', error)}") from None


# Chooses the skill for a task and the tier of models, by readable rules that explain the choice.


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


# The skills of agents: find one by name, and show which one a task would use.


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

"""Skills of agents: the built-in skills and the user's own.

A user's skill is a directory with a file SKILL.md. The front matter, between two lines of `---`, has its name,
description, keywords, allowed tools, and requirements for answers (a schema, patterns that must or must not match, and
a function that checks them). The rest of the file is the model's instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from keptwork.agents import json_schema_patterns
from keptwork.agents.json_schema import Schema
from keptwork.errors import BadInput

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
            json_schema_patterns.check(pattern)
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

    from keptwork.flows import document_core_schema

    head, mark, rest = text.lstrip("\ufeff").partition("\n")
    front, end, body = rest.partition(f"\n{_MARK}")
    if head.strip() != _MARK or not mark or not end:
        raise BadInput(what=f"{file}: it begins with front matter between two lines of {_MARK}")
    try:
        return document_core_schema.load(front), body.partition("\n")[2]
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        raise BadInput(what=f"{file}:{line}: the front matter is no YAML: {getattr(error, 'problem', error)}") from None

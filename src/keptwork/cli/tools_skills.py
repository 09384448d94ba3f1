"""`keptwork skills`: list and show skills, and show which skill a task would use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from keptwork.agents import skills_service as service
from keptwork.agents.skills import Skill, skills
from keptwork.agents.skills_routing import Graded, Routed
from keptwork.cli import screen
from keptwork.settings import read

skills_app = typer.Typer()

Folder = Annotated[
    Path | None,
    typer.Option(
        "--skills",
        envvar="KEPTWORK_SKILLS",
        metavar="FOLDER",
        help="Directory of your skills. Default: from keptwork.toml, then ./skills.",
    ),
]


@skills_app.command("list")
def list_skills(folder: Folder = None, as_json: screen.Json = False) -> None:
    """List your skills, then the built-in skills that they do not replace."""
    found = _skills(folder)
    screen.emit([service.as_json(skill) for skill in found], lambda: _skills_table(found), as_json)


@skills_app.command("show")
def show_skill(
    name: Annotated[str, typer.Argument(metavar="NAME")], folder: Folder = None, as_json: screen.Json = False
) -> None:
    """Show a skill: its keywords, its tools, and its instructions for the model."""
    found = service.find(_skills(folder), name)
    screen.emit({**service.as_json(found), "instructions": found.instructions}, lambda: _skill_shown(found), as_json)


@skills_app.command("route")
def route_(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Task, as you would give it to an agent.")],
    folder: Folder = None,
    as_json: screen.Json = False,
) -> None:
    """Show which skill and model tier a task would use, and why."""
    chosen = service.routed(text, _skills(folder))
    screen.emit(service.routed_json(chosen), lambda: _explained(*chosen), as_json)


def _skills(folder: Path | None) -> list[Skill]:
    """Return the skills that workers on this host would have."""
    return skills(read(None).skills if folder is None else folder)


def _skills_table(found: list[Skill]) -> Table:
    table = screen.table("skill", "for", "from")
    for skill in found:
        table.add_row(skill.name, skill.description, skill.source or "built in")
    return table


def _skill_shown(skill: Skill) -> str:
    parts = {
        "for": skill.description,
        "keywords": ", ".join(skill.keywords) or "none",
        "tools": ", ".join(skill.tools) or "none",
        "from": skill.source or "built in",
    }
    return "\n".join([skill.name, *(f"  {name:<9} {text}" for name, text in parts.items()), "", skill.instructions])


def _explained(routed: Routed, graded: Graded) -> str:
    width = max(len(one.skill.name) for one in routed.scores)
    scores = [f"  {one.skill.name:<{width}} {one.points:>3}  {', '.join(one.words)}" for one in routed.scores]
    head = f"{routed.skill.name}: {routed.why}"
    return "\n".join([head, *scores, f"tier {graded.tier}: {graded.why}"])

"""`keptwork tools`: show the tool profiles of keptwork.toml, and check that they can run here."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from keptwork.agents import skills as service
from keptwork.agents.skills import Graded, Routed, Skill, skills
from keptwork.cli import screen
from keptwork.core.durations import size_text
from keptwork.flows.steps import tool as tool_specs
from keptwork.settings import Config, Tool, read

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.flows.steps.tool import Checked


app = typer.Typer()
SIZES = ("memory", "output")

File = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Configuration file. Default: $KEPTWORK_CONFIG, then ./keptwork.toml."
    ),
]
"""The option of every command that reads the configuration."""


@app.command("list")
def list_(config: File = None, as_json: screen.Json = False) -> None:
    """List tools: commands, timeouts, exit codes, and circuit breakers."""
    found = read(config)
    screen.emit(
        {"tools": [tool_specs.as_json(found, name, tool) for name, tool in found.tools.items()]},
        lambda: _table(found) if found.tools else f"No tools: {found.path} declares none. Add one as [tools.NAME].",
        as_json,
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tool profile.")],
    config: File = None,
    as_json: screen.Json = False,
) -> None:
    """Show all settings of a tool, including defaults."""
    found = read(config)
    tool = tool_specs.as_json(found, name, tool_specs.find(found, name))
    screen.emit(tool, lambda: _settings(tool), as_json)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Tool profiles. Default: all.")] = None,
    versions: Annotated[bool, typer.Option("--versions", help="Run each program with --version.")] = False,
    config: File = None,
    as_json: screen.Json = False,
) -> None:
    """Check that the tools can run here: each program and directory exists. Exit code 1 if there are problems."""
    found = read(config)
    checked = asyncio.run(tool_specs.checked(found, names or found.tools, versions))
    screen.emit({"tools": [_verdict(one) for one in checked]}, lambda: _report(checked, found), as_json)
    if any(one.problems for one in checked):
        raise typer.Exit(1)


def _table(config: Config) -> RenderableType:
    table = screen.table("name", "command", "timeout", "exit codes", "idempotent", "breaker")
    for name, tool in config.tools.items():
        codes = ", ".join(map(str, tool.expected_exit_codes))
        table.add_row(name, shlex.join(tool.command), tool.timeout, codes, _yes(tool.idempotent), _breaker(tool))
    return table


def _breaker(tool: Tool) -> str:
    rules = tool.breaker
    return f"{rules.failure_threshold} failures, {rules.cooldown_seconds:g} s, {rules.success_threshold} to close"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _settings(tool: dict[str, Any]) -> RenderableType:
    table = screen.table("setting", "value")
    for name, value in {**tool, **{f"breaker.{key}": value for key, value in tool["breaker"].items()}}.items():
        if name != "breaker":
            table.add_row(name, _shown(name, value))
    return table


def _shown(name: str, value: Any) -> str:
    if name == "command":
        return shlex.join(value)
    if name in SIZES and value is not None:
        return size_text(value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else _yes(value) if isinstance(value, bool) else str(value)


def _verdict(one: Checked) -> dict[str, Any]:
    return {"ok": not one.problems, **one._asdict()}


def _report(checked: list[Checked], config: Config) -> str:
    lines = [line for one in checked for line in (one.problems or [_good(one)])]
    return "\n".join(lines) or f"No tools: {config.path} declares none."


def _good(one: Checked) -> str:
    return f"{one.name}: {one.program}{f', {one.version}' if one.version else ''}"


# `keptwork skills`: list and show skills, and show which skill a task would use.


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

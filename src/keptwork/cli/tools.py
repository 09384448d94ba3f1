"""`keptwork tools`: show the tool profiles of keptwork.toml, and check that they can run here."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.core.durations_sizes import size_text
from keptwork.flows.steps import tool_tools as tool_specs
from keptwork.settings import Config, Tool, read

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.flows.steps.tool_tools import Checked

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

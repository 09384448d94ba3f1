"""Tool profiles of a project: find one, and check whether it can run here."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from keptwork.errors import NotFound
from keptwork.process.tool import Command, NotStarted, Output, Tools
from keptwork.process.tool_environment import passed_on

if TYPE_CHECKING:
    from keptwork.settings import Config, Tool

VERSION_SECONDS = 10.0


class Checked(NamedTuple):
    """A tool with its program, its version if it was requested, and its problems."""

    name: str
    program: str | None
    version: str | None
    problems: list[str]


def find(config: Config, name: str) -> Tool:
    """Return a profile by its name, or raise `NotFound`."""
    found = config.tools.get(name)
    if found is None:
        raise NotFound(what="tool", id=f"called {name} in {config.path}", listing="keptwork tools list")
    return found


def as_json(config: Config, name: str, tool: Tool) -> dict[str, Any]:
    """Return a profile in its public form."""
    return {"name": name, **tool.model_dump(mode="json"), "cwd": config.folder(tool)}


async def checked(config: Config, names: Iterable[str], versions: bool = False) -> list[Checked]:
    """Check whether each tool can run here: its program and its directory must exist."""
    found = [_checked(config, name, find(config, name)) for name in names]
    return await _with_versions(config, found) if versions else found


def _checked(config: Config, name: str, tool: Tool) -> Checked:
    folder, search = config.folder(tool), passed_on(tool.env)["PATH"]
    program = shutil.which(_place(tool.command[0], folder), path=search)
    problems = []
    if folder is not None and not os.path.isdir(folder):
        problems.append(f"{name}: there is no folder {folder} to run in")
    if program is None:
        where = "" if "/" in tool.command[0] else f"; it was looked for in {search}"
        problems.append(f"{name}: there is no program {tool.command[0]!r} that may be run{where}")
    return Checked(name, program, None, problems)


def _place(program: str, folder: str | None) -> str:
    """Return the path of a program. A relative path is relative to the directory that it runs in."""
    return os.path.join(folder or ".", program) if "/" in program else program


async def _with_versions(config: Config, found: list[Checked]) -> list[Checked]:
    tools = Tools()
    try:
        return [one if one.problems else await _with_version(tools, config, one) for one in found]
    finally:
        await tools.close()


async def _with_version(tools: Tools, config: Config, one: Checked) -> Checked:
    """Add the first line that the tool prints for --version. A timeout is a problem; a failure leaves no version."""
    tool, output = config.tools[one.name], Output()
    command = Command((tool.command[0], "--version"), passed_on(tool.env), config.folder(tool))
    try:
        async with asyncio.timeout(VERSION_SECONDS):
            ending = await tools.run(command, output)
    except (TimeoutError, NotStarted) as error:
        return one._replace(problems=[f"{one.name}: --version: {str(error) or 'it did not end in time'}"])
    said = output.stdout.first_line or output.stderr.first_line
    return one._replace(version=said if ending.code == 0 else None)

"""The steps `tool` and `command`: which programs may run, and how."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from keptwork.core.durations import span_us
from keptwork.errors import NotFound
from keptwork.flows.definition import variable
from keptwork.flows.expression import as_text
from keptwork.outcomes import PermanentError
from keptwork.process.resource_limits import Limits
from keptwork.process.tool import MOST_OUTPUT, Command, NotStarted, Output, Tools, passed_on

if TYPE_CHECKING:
    from keptwork.flows.definition import Step
    from keptwork.settings import Config, Tool


# Build the complete specification of a program from a tool or command step and the tool's profile.


USUAL_TIMEOUT_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A program to run for a job.

    `label` is its name for users and the last part of its idempotency key. `tries` limits how often a failing program
    that is not idempotent runs, however many attempts its job has.
    """

    argv: tuple[str, ...]
    label: str
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes = b""
    timeout_us: int = USUAL_TIMEOUT_US
    expected_exit_codes: tuple[int, ...] = (0,)
    retry_on_failure: bool = True
    idempotent: bool = True
    tries: int = 1
    review_by: str | None = None
    limits: Limits = field(default_factory=Limits)
    most_output: int = MOST_OUTPUT


def spec_of(step: Step, config: Config) -> ToolSpec:
    """Return the program of a step whose references are resolved. The step overrides the tool's profile.

    Raise `PermanentError` if the program cannot be run. Of this process's environment, the program receives little more
    than PATH and the variables that the profile lists.
    """
    tool = None if step.tool is None else profile(step.tool, config)
    usual = _of_profile(tool, config) if tool is not None else {}
    said = {
        "cwd": None if step.cwd is None else as_text(step.cwd),
        "timeout_us": None if step.timeout is None else span_us(step.timeout),
        "expected_exit_codes": tuple(step.expected_exit_codes or ()) or None,
        "idempotent": step.idempotent,
    }
    return ToolSpec(
        argv=tuple(as_text(part) for part in _argv(step, tool)),
        label=step.id,
        tries=step.retries + 1,
        env={**passed_on(tool.env if tool else ()), **_own(step.env)},
        stdin=b"" if step.stdin is None else _encoded(as_text(step.stdin)),
        **{**usual, **{name: value for name, value in said.items() if value is not None}},
    )


def spec_for(name: str, config: Config, argv: tuple[str, ...] = (), stdin: bytes = b"") -> ToolSpec:
    """Return the program of a tool's profile, with these additional arguments."""
    tool = profile(name, config)
    command = (*tool.command, *argv)
    return ToolSpec(command, name, passed_on(tool.env), stdin=stdin, **_of_profile(tool, config))


def profile(name: str, config: Config) -> Tool:
    """Return a profile by name. Raise `PermanentError` if it does not exist."""
    found = config.tools.get(name)
    if found is None:
        raise PermanentError(missing(name, config))
    return found


def missing(name: str, config: Config) -> str:
    """Return the message for a profile that does not exist."""
    known = ", ".join(sorted(config.tools)) or "none"
    return f"there is no tool {name} in {config.path}; it has: {known}. Add it as [tools.{name}]"


def _of_profile(profile: Tool, config: Config) -> dict[str, Any]:
    return {
        "cwd": config.folder(profile),
        "timeout_us": span_us(profile.timeout),
        "expected_exit_codes": tuple(profile.expected_exit_codes),
        "retry_on_failure": profile.retry_on_failure,
        "idempotent": profile.idempotent,
        "review_by": profile.review_by,
        "limits": profile.limits,
        "most_output": profile.output,
    }


def _argv(step: Step, profile: Tool | None) -> list[Any]:
    return [*profile.command, *step.args] if profile is not None else list(step.command or ())


def _own(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the step's own variables, with names checked."""
    try:
        return {variable(name): _text(name, value) for name, value in given.items()}
    except ValueError as refusal:
        raise PermanentError(f"env: {refusal}") from None


def _text(name: str, value: Any) -> str:
    text = as_text(value)
    _encoded(text, f"the variable {name}")
    return text


def _encoded(text: str, what: str = "stdin") -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise PermanentError(f"{what} is no text: it holds half of a character at {error.start}") from None


# Tool profiles of a project: find one, and check whether it can run here.


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

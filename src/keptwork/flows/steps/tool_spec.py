"""Build the complete specification of a program from a tool or command step and the tool's profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keptwork.core.durations import span_us
from keptwork.flows.definition import variable
from keptwork.flows.expression import as_text
from keptwork.outcomes import PermanentError
from keptwork.process.resource_limits import Limits
from keptwork.process.tool import MOST_OUTPUT
from keptwork.process.tool_environment import passed_on

if TYPE_CHECKING:
    from keptwork.flows.definition import Step
    from keptwork.settings import Config, Tool

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

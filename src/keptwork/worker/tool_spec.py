"""What a tool or command step runs, with everything settled: from the step, and the profile of its tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keptwork.flow.definition import variable
from keptwork.flow.expression import as_text
from keptwork.moments import span_us
from keptwork.outcomes import PermanentError
from keptwork.process.environment import passed_on
from keptwork.process.limits import Limits
from keptwork.process.tool import MOST_OUTPUT

if TYPE_CHECKING:
    from keptwork.config import Config, Tool
    from keptwork.flow.definition import Step

USUAL_TIMEOUT_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A program to run for a job; `label` is what people know it by, and what its idempotency key ends in. One that is
    not idempotent is run so many times at the most when it fails, however many attempts its job has."""

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
    """What a step runs, whose references are filled in: what it says wins over the profile of its tool. What cannot be
    run is a `PermanentError`. Of this process's environment it gets little more than PATH, and what the profile
    lists."""
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
    """What is run for the profile of a tool with these arguments more, where no step says otherwise."""
    tool = profile(name, config)
    command = (*tool.command, *argv)
    return ToolSpec(command, name, passed_on(tool.env), stdin=stdin, **_of_profile(tool, config))


def profile(name: str, config: Config) -> Tool:
    """A profile by its name; one that is not there is a `PermanentError`."""
    found = config.tools.get(name)
    if found is None:
        raise PermanentError(missing(name, config))
    return found


def missing(name: str, config: Config) -> str:
    """What is said of a profile that is not there."""
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
    """What the step itself says, by names it may use."""
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

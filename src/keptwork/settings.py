"""The file `keptwork.toml`: what a project says once for all its flows: its tools, its agents (`agents/settings.py`),
its server (`settings.py`).

The file is named by `--config` or by KEPTWORK_CONFIG and must exist; without either, the one in the working directory
is read if it exists. All problems are reported together, each with file and key. The program of a tool is an
argv list, never a line for a shell; of the environment it gets only the names that are listed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from keptwork.access.scopes import LARGEST, NAMES, Allowance
from keptwork.agents.settings import Agents, Budgets, Models, Price
from keptwork.agents.validation import Takes
from keptwork.core.durations import size_bytes
from keptwork.core.validation import Path as Place
from keptwork.core.validation import misfits
from keptwork.errors import BadConfig, BadInput
from keptwork.flows.definition import Duration, Model, Name, Text, variable
from keptwork.flows.validation import no_time
from keptwork.process.resource_limits import Limits

# What `keptwork.toml` may say of the HTTP server: `[server]`. In words: docs/how-to/http.md.


Bound = Annotated[int, Field(ge=0, le=LARGEST)]
_USUAL = Allowance()


class Server(Model):
    """The bounds of tenants that have none of their own, and of guesses at keys (0 is no bound); and whether PostgreSQL
    must keep tenants apart by itself."""

    requests_per_second: Bound = Field(
        _USUAL.requests_per_second, description="Requests of a tenant to one server process, on average."
    )
    burst: Bound = Field(_USUAL.burst, description="Requests of a tenant to one server process that may come at once.")
    max_in_flight: Bound = Field(
        _USUAL.max_in_flight, description="Requests of a tenant that are under way at one server process."
    )
    max_streams: Bound = Field(
        _USUAL.max_streams, description="Open streams and long waits of a tenant at one server process."
    )
    max_queued: Bound = Field(_USUAL.max_queued, description="Jobs of a tenant that wait, in the whole database.")
    failed_keys_per_minute: Bound = Field(600, description="Wrong keys from one address, before it is told to wait.")
    row_security: Literal["auto", "require", "off"] = Field(
        "auto",
        description="Whether PostgreSQL keeps tenants apart by itself. auto: where it can. require: else nothing is "
        "served. off: it is not asked to.",
    )

    @property
    def allowance(self) -> Allowance:
        """What each tenant may ask."""
        return Allowance(**{name: getattr(self, name) for name in NAMES})


FILE = "keptwork.toml"
VARIABLE = "KEPTWORK_CONFIG"
SKILLS = "KEPTWORK_SKILLS"
LARGEST_FILE = 1 << 20
LEAST_OUTPUT, MOST_OUTPUT = 1 << 10, 1 << 20
USUAL_TIMEOUT = "1h"


def _size(value: object) -> int:
    try:
        return size_bytes(value)  # type: ignore[arg-type]  # it refuses what is neither text nor a number
    except BadInput as refusal:
        raise ValueError(str(refusal)) from None


def _plain(value: str) -> str:
    if "\0" in value:
        raise ValueError("it holds a NUL, which no program can be given")
    return value


def _output(value: int) -> int:
    if not LEAST_OUTPUT <= value <= MOST_OUTPUT:
        raise ValueError("of each stream between 1KiB and 1MiB are kept")
    return value


def _some_time(value: str) -> str:
    if wrong := no_time(value):
        raise ValueError(wrong)
    return value


Variable = Annotated[str, AfterValidator(variable), WithJsonSchema({"title": "Name of a variable", "type": "string"})]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"title": "Amount of memory", "type": ["string", "integer"], "examples": ["512MB"]}),
]
ExitCode = Annotated[int, Field(ge=0, le=255)]
Plain = Annotated[Text, AfterValidator(_plain)]


class Breaker(Model):
    """When a tool is left alone for a while: after so many failures in a row, for so long, until so many probes
    succeed."""

    failure_threshold: int = Field(5, ge=1, le=1_000_000, description="Failures in a row that open it.")
    cooldown_seconds: int | float = Field(
        60, gt=0, le=30 * 86_400, description="How long nobody tries after it opened, and after a try that failed."
    )
    success_threshold: int = Field(1, ge=1, le=1_000_000, description="Good tries, one after the other, that close it.")


class Tool(Model):
    """A tool profile: a program, and what many steps that run it share. What a step says wins over it. `description`,
    `approval`, `arguments` and `args` are for agents."""

    command: Annotated[list[Plain], Field(min_length=1, max_length=1_000)] = Field(
        description="The program and its first arguments; never a line for a shell."
    )
    timeout: Annotated[Duration, AfterValidator(_some_time)] = Field(
        USUAL_TIMEOUT, description="How long one run may take; then it is ended with all it started."
    )
    expected_exit_codes: list[ExitCode] = Field(
        default_factory=lambda: [0], min_length=1, description="The exit codes that are a success."
    )
    retry_on_failure: bool = Field(
        True, description="Whether a run that failed is tried again, as often as the step's retries allow."
    )
    env: list[Variable] = Field(
        default_factory=list, max_length=1_000, description="What is passed on of the worker's environment."
    )
    cwd: Plain | None = Field(
        None, description="The folder it runs in, seen from where keptwork.toml is; else the worker's own."
    )
    idempotent: bool = Field(
        True,
        description="With false it must not run twice: when nobody knows whether it took effect, people are asked.",
    )
    review_by: Name | None = Field(None, description="Who is asked about a run: a scope, such as ops.")
    memory: Bytes | None = Field(
        None, description="What the program and all it starts may use together, 32MiB or more."
    )
    cpu: Duration | None = Field(
        None, description="The CPU time that the program and all it starts may use, 1s or more."
    )
    output: Annotated[Bytes, AfterValidator(_output)] = Field(
        MOST_OUTPUT, description="How much of stdout, and of stderr, is kept; between 1KiB and 1MiB."
    )
    breaker: Breaker = Field(
        default_factory=lambda: Breaker.model_validate({}), description="When the tool is left alone for a while."
    )
    description: Text = Field("", description="What a model is told of it.")
    approval: bool = Field(False, description="Whether people are asked before each run that a model wants.")
    arguments: dict[str, Any] | None = Field(
        None, description="A JSON Schema of what a model may give it; without one it takes nothing."
    )
    args: Annotated[list[Plain | list[Plain]], Field(max_length=1_000)] | None = Field(
        None,
        description="How what a model gives becomes arguments: {name} stands for a value, and a list in it is left out "
        "where a value is not given. Without it all goes to stdin, as JSON.",
    )

    @cached_property
    def takes(self) -> Takes:
        """What it takes from a model that asks for it."""
        return Takes(self.arguments, self.args)

    @cached_property
    def limits(self) -> Limits:
        """What it may use."""
        return Limits.of(self.memory, self.cpu)

    @model_validator(mode="after")
    def _possible(self) -> Tool:
        if not self.command[0]:
            raise ValueError("the first part of command names the program; it is empty")
        try:
            Limits.of(self.memory, self.cpu)
            Takes(self.arguments, self.args)
        except BadInput as refusal:
            raise ValueError(str(refusal)) from None
        return self


class Config(Model):
    """What the file says. It is the same as an empty file if there is none."""

    tools: dict[Name, Tool] = Field(default_factory=dict, description="The programs that steps and agents run.")
    models: Models = Field(
        default_factory=lambda: Models.model_validate({}), description="Who is asked, and for which models."
    )
    budgets: Budgets = Field(
        default_factory=lambda: Budgets.model_validate({}), description="How much may be spent on models."
    )
    agents: Agents = Field(
        default_factory=lambda: Agents.model_validate({}), description="How far agents may go, and their skills."
    )
    server: Server = Field(
        default_factory=lambda: Server.model_validate({}), description="The bounds of the HTTP server."
    )

    _path: Path = PrivateAttr(default_factory=lambda: Path(FILE))

    @property
    def path(self) -> Path:
        """Where it was read from, or would have been."""
        return self._path

    def folder(self, tool: Tool) -> str | None:
        """Where a tool runs: as its profile says, seen from where the file is."""
        return None if tool.cwd is None else str(self.beside(tool.cwd))

    @property
    def skills(self) -> Path:
        """The folder of a project's own skills, which the environment may name instead."""
        return Path(os.environ.get(SKILLS) or self.beside(self.agents.skills))

    def beside(self, place: str) -> Path:
        """A place that the file names, seen from where the file is."""
        return self._path.absolute().parent / place


def read(path: str | os.PathLike[str] | None = None) -> Config:
    """What the configuration file says; what is wrong with it is `BadConfig`, one line for each problem."""
    named = path or os.environ.get(VARIABLE)
    place = Path(named or FILE)
    data = _data(place) if named or place.exists() else {}
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise BadConfig.of(place, sorted({what for _, what in misfits(data, error, _known)})) from None
    config._path = place
    return config


def _data(place: Path) -> dict[str, Any]:
    try:
        if place.stat().st_size > LARGEST_FILE:
            raise BadConfig.of(place, [f"the file is larger than {LARGEST_FILE >> 20} MiB"])
        return tomllib.loads(place.read_bytes().decode())
    except OSError as error:
        raise BadConfig.of(place, [f"it cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise BadConfig.of(place, ["it is no text in UTF-8"]) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadConfig.of(place, [f"this is no TOML: {str(error) or 'it is too deep'}"]) from None


_TABLES: dict[str, type[Model]] = {"models": Models, "budgets": Budgets, "agents": Agents, "server": Server}


def _known(path: Place) -> Iterable[str]:
    """The keys there may be in a place."""
    if path[0] in _TABLES and len(path) > 1:
        return Price.model_fields if path[1] == "prices" and len(path) > 3 else _TABLES[str(path[0])].model_fields
    if len(path) < 3:
        return Config.model_fields
    return Breaker.model_fields if path[2] == "breaker" and len(path) > 3 else Tool.model_fields

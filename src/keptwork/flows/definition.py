"""The model of a flow file, from which the checks, the published JSON Schema, and the reference page derive.

A flow is a list of steps. A step has exactly one kind, named by the key that defines its work: `tool`, `command`,
`call`, `agent`, `approval`, `crew`, or `flow`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from keptwork.core.durations import span_us
from keptwork.errors import BadInput
from keptwork.flows import expression, program_output

Json = Any

KINDS = ("tool", "command", "call", "agent", "approval", "crew", "flow")
MOST_STEPS = 5_000
MOST_DOLLARS = 1_000_000
LONGEST_TEXT = 100_000
ITEM = "item"
INPUTS = "inputs"
RESERVED = (INPUTS, ITEM, "flow")
"""Names in references that are not steps."""

_WRITTEN = program_output.OUTPUT | {f"{stream}_truncated" for stream in program_output.STREAMS}
_ANSWERED = {"text", "model", "provider", "tier", "skill", "cost_micros", "cost_usd", "input_tokens", "output_tokens"}
VALUES = {
    "tool": _WRITTEN,
    "command": _WRITTEN,
    "agent": frozenset({*_ANSWERED, "json"}),
    "approval": frozenset({"approved_by", "comment"}),
    "crew": frozenset({"id", "shares"}),
    "flow": frozenset({"id", "steps"}),
}
"""The values that each kind of step provides to other steps. Those of a function are not known here."""

OWN = "KEPTWORK_"
"""Prefix of Keptwork's own environment variables. A tool receives some of them, and a step cannot set any."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_NAME = re.compile(r"[A-Za-z_][\w-]{0,99}")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _duration(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("write a duration like 30s, 10m, 1h30m or 7d")
    try:
        span_us(value)
    except BadInput as refusal:
        raise ValueError(str(refusal)) from None
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is no name; use up to 100 letters, digits, - and _, beginning with one of a to z")
    return value


def variable(name: str) -> str:
    """Return the name of a variable that a step can set. Raise ValueError for any other."""
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} names no variable; use letters, digits and _, beginning with a letter")
    if name.upper().startswith(OWN):
        raise ValueError(f"{name} is kept from tools: names that begin with {OWN} are Keptwork's own")
    return name


@lru_cache(maxsize=1_000)  # many steps of a flow can call the same function
def _target(value: str) -> str:
    if not _TARGET.fullmatch(value):
        raise ValueError(f"{value!r} names no function; write module:function, as in shop.release:publish")
    return value


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _dollars(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("write an amount of dollars, such as 2.00")
    amount = Decimal(str(value))
    if amount.is_nan() or not 0 <= amount <= MOST_DOLLARS or amount != round(amount, 6):
        raise ValueError(
            f"an amount lies between 0 and {MOST_DOLLARS:,} dollars, with at most six digits after the point"
        )
    return amount


def _condition(value: str) -> str:
    expression.condition(value)
    return value


# The reference of flow files and settings shows the title of a type as its name (tools/file_reference.py).
_A_NAME = {"title": "Name", "type": "string", "pattern": f"^{_NAME.pattern}$"}
Name = Annotated[str, AfterValidator(_name), WithJsonSchema(_A_NAME)]
Names = Annotated[
    list[Name],
    BeforeValidator(_one_or_many),
    Field(max_length=MOST_STEPS),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _A_NAME, "maxItems": MOST_STEPS}, _A_NAME]}),
]
Duration = Annotated[
    str,
    BeforeValidator(_duration),
    WithJsonSchema({"title": "Duration", "type": "string", "examples": ["30s", "10m", "1h30m"]}),
]
Dollars = Annotated[
    Decimal,
    BeforeValidator(_dollars),
    WithJsonSchema({"title": "Amount of dollars", "type": "number", "minimum": 0, "maximum": MOST_DOLLARS}),
]
Target = Annotated[
    str,
    AfterValidator(_target),
    WithJsonSchema({"title": "Function", "type": "string", "examples": ["shop.release:publish"]}),
]
ConditionText = Annotated[
    str,
    AfterValidator(_condition),
    WithJsonSchema({"title": "Condition", "type": "string", "examples": ["${test.exit_code} == 0"]}),
]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Argument = Text | int | float | bool


class Model(BaseModel):
    """Knows every key it may have, takes no value of another type for its own, and never changes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Input(Model):
    """A value a flow is started with."""

    type: Literal["string", "integer", "number", "boolean", "list", "object"] = Field(
        default="string", description="What the value has to be."
    )
    default: Json = Field(default=None, description="The value if none is given.")
    required: bool = Field(default=False, description="Whether a flow is only started with it; then it has no default.")
    description: str | None = Field(default=None, description="What it is for, in words.")
    choices: list[Json] | None = Field(default=None, description="The values there may be.")


class ForEach(Model):
    """Runs the step once for every element of a list; in it `${item}` is the element."""

    items: list[Json] | Text = Field(description="A list, or a reference to one.")
    limit: int = Field(8, ge=1, le=1_000, description="How many run at the same time.")


class Approval(Model):
    """Somebody has to agree before the flow goes on."""

    question: Text | None = Field(
        None, description="What people are asked; else the description of the step, or whether to go on."
    )
    by: Name | None = Field(None, description="Who may: a scope, such as ops.")
    expires: Duration | None = Field(
        None, description="How long the question stays open; then the step fails. Else it stays open for good."
    )


class Crew(Model):
    """A task for several workers."""

    task: Text = Field(description="What the crew is to do.")
    workers: int = Field(1, ge=1, le=10, description="Into how many shares it is divided, each for one worker.")
    call: Target | None = Field(None, description="A function of share, shares and task; else a model is asked.")


class Step(Model):
    """One step. Exactly one of the keys from `tool` to `flow` says what it does."""

    id: Name = Field(description="What other steps call it; each has one of its own.")
    tool: Name | None = Field(None, description="A tool profile of keptwork.toml.")
    command: Annotated[list[Argument], Field(min_length=1, max_length=1_000)] | None = Field(
        None, description="A program and its arguments; never a shell."
    )
    call: Target | None = Field(None, description="A Python function.")
    agent: Text | None = Field(None, min_length=1, description="What to ask a model.")
    approval: Approval | None = Field(None, description="What people are asked; the step waits for their answer.")
    crew: Crew | None = Field(None, description="A task for several workers.")
    flow: Text | None = Field(None, description="Another flow file, or a template by name.")

    description: str | None = Field(None, description="What it is for, in words.")
    depends_on: Names = Field(default_factory=list, description="The steps that come before it.")
    when: ConditionText | None = Field(
        None,
        description="The step is skipped when this is not true. With `${item}` it is decided for each item.",
    )
    truncated: Literal["fail", "allow"] = Field(
        "fail",
        description="Whether the step can use program output that was truncated. fail: a reference to it is an error.",
    )
    for_each: ForEach | None = Field(None, description="Runs the step once for every element of a list.")
    with_: dict[str, Json] = Field(default_factory=dict, alias="with", description="Arguments of call and flow.")
    inline: bool = Field(
        False, description="A short function without effects: several are called one after the other, by one job."
    )
    args: Annotated[list[Argument], Field(max_length=1_000)] = Field(
        default_factory=list, description="Arguments that follow the command of the tool's profile."
    )
    env: dict[str, Argument] = Field(default_factory=dict, description="Variables that the program is given.")
    cwd: Text | None = Field(
        None, description="The folder it runs in; else that of the tool's profile, or the worker's own."
    )
    stdin: Text | None = Field(None, description="What the program reads from its standard input.")
    expected_exit_codes: list[Annotated[int, Field(ge=0, le=255)]] | None = Field(
        None, description="The exit codes that are a success; else those of the tool's profile, or 0."
    )
    idempotent: bool | None = Field(
        None,
        description="With false it is not tried again blindly after a crash; somebody looks at it. "
        "Where nothing is said: as the tool's profile says, or true.",
    )
    on_open: Literal["hold", "fail"] = Field(
        "hold", description="While the breaker of its tool or model is open, hold: it waits. fail: it fails at once."
    )
    tier: Literal["haiku", "sonnet", "opus"] | None = Field(
        None, description="How capable a model is asked; else rules choose by the task."
    )
    skill: Name | None = Field(None, description="The skill the agent works by; else the one that fits best.")
    output_schema: dict[str, Json] | None = Field(
        None, description="A JSON Schema that the answer has to fit; it is then also there as json."
    )
    timeout: Duration | None = Field(
        None,
        description="How long one try may take. Else: for a tool and an agent as keptwork.toml says, for a command 1h, "
        "for a call as long as it takes.",
    )
    retries: int = Field(
        0,
        ge=0,
        le=100,
        description="How often it is tried again when it fails. "
        "Where nothing is said, 2 times in a run, and elsewhere 3 times for an agent or a crew.",
    )
    backoff: Duration | None = Field(
        None, description="What the pauses between tries grow from: each is twice as long as the one before, up to 5m."
    )
    queue: str | None = Field(
        None, min_length=1, max_length=200, description="Whose workers carry it out; else the queue of its flow."
    )
    budget_usd: Dollars | None = Field(None, description="What an agent may spend; else job_usd of keptwork.toml.")

    @cached_property
    def kind(self) -> str:
        """The kind of the step."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def conditional(self) -> bool:
        """Whether a condition or list decides how the step starts."""
        return self.when is not None or self.for_each is not None

    @property
    def takes_cut(self) -> bool:
        """Whether the step accepts truncated output."""
        return self.truncated == "allow"

    @cached_property
    def sifts(self) -> bool:
        """Whether the condition is decided for each item of the list, because it uses `${item}`."""
        if self.when is None or self.for_each is None:
            return False
        return any(one.root == ITEM for one in expression.condition(self.when).references.values())

    @property
    def values(self) -> frozenset[str] | None:
        """The names of the values that the step provides, or None if the definition does not determine them."""
        return OF_EACH if self.for_each is not None else VALUES.get(self.kind)

    @cached_property
    def refers(self) -> bool:
        """Whether the step might refer to values of other steps."""
        said = self.__pydantic_fields_set__ & _REFERRING
        return self.when is not None or any(expression.texts(_plain(getattr(self, name))) for name in said)

    @cached_property
    def references(self) -> tuple[expression.Reference, ...]:
        """Every reference in the step."""
        asked = () if self.when is None else expression.condition(self.when).references.values()
        return (*expression.references(self._filled_in), *asked)

    @property
    def unclosed(self) -> Iterator[str]:
        """Texts in the step that start like references but have no end."""
        return expression.unclosed(self._filled_in)

    @property
    def _filled_in(self) -> list[Any]:
        """The parts of the step that can contain references."""
        return [_plain(getattr(self, name)) for name in sorted(self.__pydantic_fields_set__ & _REFERRING)]

    @model_validator(mode="after")
    def _one_kind(self) -> Step:
        said = self.__pydantic_fields_set__
        named = [kind for kind in _KINDS & said if getattr(self, kind) is not None]
        if len(named) != 1:
            found = " and ".join(sorted(named, key=KINDS.index)) or "none of them"
            raise ValueError(f"a step has exactly one of {', '.join(KINDS)}; this one has {found}")
        if not said.isdisjoint(_NOT_OF[named[0]]):
            key = min(_NOT_OF[named[0]] & said)
            shown, kinds = key.rstrip("_"), " or ".join(ONLY_OF[key])
            raise ValueError(f"{shown} belongs to a step of kind {kinds}, not to {named[0]}")
        return self


def _plain(part: Any) -> Any:
    return part.model_dump() if isinstance(part, Model) else part


_NOT_FILLED_IN = {"id", "when", "depends_on", "description", "inline", "call", "retries", "truncated"}
_REFERRING = frozenset(Step.model_fields) - _NOT_FILLED_IN
"""The fields that can contain references."""
OF_EACH = frozenset({"items", "count"})
"""The values that a step of any kind provides if it has `for_each`."""

_PROCESS = ("tool", "command")
ONLY_OF = {
    "with_": ("call", "flow"),
    "inline": ("call",),
    "for_each": ("tool", "command", "call", "agent", "flow"),
    "args": ("tool",),
    "env": _PROCESS,
    "cwd": _PROCESS,
    "stdin": _PROCESS,
    "expected_exit_codes": _PROCESS,
    "idempotent": _PROCESS,
    "on_open": ("tool", "agent"),
    "tier": ("agent",),
    "skill": ("agent",),
    "output_schema": ("agent",),
    "budget_usd": ("agent", "flow"),
}
"""The kinds of steps that allow a field. Other fields are allowed in all kinds."""

_KINDS = frozenset(KINDS)
_NOT_OF = {kind: frozenset(key for key, kinds in ONLY_OF.items() if kind not in kinds) for kind in KINDS}


class Flow(Model):
    """A flow file."""

    name: Name = Field(description="What the flow is called, and started by once it is kept as a template.")
    kind: Literal["workstream", "run"] = Field(
        "workstream", description="workstream: a graph of steps. run: steps in strict order."
    )
    description: str | None = Field(None, description="What it is for, in words.")
    inputs: dict[Name, Input] = Field({}, description="The values it is started with.")
    budget_usd: Dollars | None = Field(
        None,
        description="What it may spend, with all flows inside it; else flow_usd of keptwork.toml. "
        "Inside another flow, the budget of the outermost one holds instead.",
    )
    max_retries: int = Field(
        0, ge=0, le=100, description="How often what did not succeed in a workstream is run again."
    )
    abandon_after: Duration = Field(
        "24h",
        description="How long a failed workstream waits for an operator; one inside another flow only if this is said.",
    )
    timeout: Duration | None = Field(None, description="How long it may take as a whole; then it ends without success.")
    steps: Annotated[list[Step], Field(min_length=1, max_length=MOST_STEPS)] = Field(description="What is done.")

    @classmethod
    def published_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of flow files, for editors and programs."""
        schema = cls.model_json_schema(by_alias=True)
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Keptwork flow"}

    @property
    def dependencies(self) -> dict[str, list[str]]:
        """The predecessors of each step. In a run, that is the step before it."""
        if self.kind == "run":
            return {step.id: [self.steps[place - 1].id] if place else [] for place, step in enumerate(self.steps)}
        return {step.id: list(step.depends_on) for step in self.steps}

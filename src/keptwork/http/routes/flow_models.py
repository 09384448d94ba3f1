"""How runs and workstreams look, and how one is asked for."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from keptwork.bounds import LONGEST_KEY, LONGEST_NAME
from keptwork.http.idempotency import Asked, example
from keptwork.http.pages import JsonObject, Text
from keptwork.http.routes.approvals import Approval
from keptwork.http.routes.events import Moved
from keptwork.http.routes.jobs import Progress as Said
from keptwork.http.routes.steps import OwnStep

MOST_INPUTS = 1_000
LONGEST_URL = 2_000


class Flow(BaseModel):
    """A flow, as lists show it."""

    id: str
    kind: str
    state: str
    status: str
    name: str
    key: str | None
    inputs: dict[str, Any]
    error: str | None
    reason: str | None
    correlation_id: str | None
    trace_id: str | None
    seq: int
    created_at: str
    updated_at: str
    started_at: str | None
    completed_at: str | None
    held_at: str | None
    wake_at: str | None


class StartedFlow(Flow):
    """The flow, and whether it was made now; under a key that was used before it is the first one."""

    created: bool


class Version(BaseModel):
    """The very definition that a flow is of."""

    id: str
    version: int


class WholeFlow(Flow):
    """A flow with everything that is known of it; `inside_of` is the flow that it is a step of."""

    template: Version | None
    cost_micros: int
    lost_calls: int
    lost_micros: int
    steps: list[OwnStep]
    questions: list[Approval]
    inside_of: str | None
    events: list[Moved]


class CostOfStep(BaseModel):
    """What one step cost."""

    id: str
    name: str
    cost_micros: int
    cost_usd: str
    lost_calls: int
    lost_micros: int
    reserved_micros: int


class CostOfFlow(BaseModel):
    """What calls to models cost by the ledger, in all and by step. Steps that made no calls are left out. Lost calls
    count with what they may have cost at most; calls in flight are only reserved."""

    id: str
    cost_micros: int
    cost_usd: str
    lost_calls: int
    lost_micros: int
    reserved_micros: int
    steps: list[CostOfStep]


class RunningStep(BaseModel):
    """A step that runs, since when, and what it has said last of how far it is."""

    id: str
    name: str
    started_at: str | None
    said: Said | None


class FlowProgress(BaseModel):
    """How many of its steps are how far; `now` are those that run, of very many the first. What is left is expected by
    what flows of its name took before, given workers enough; none if nothing is known of them."""

    total: int
    done: int
    running: int
    waiting: int
    failed: int
    cancelled: int
    now: list[RunningStep]
    elapsed_seconds: float
    expected_left_seconds: float | None


class Webhook(BaseModel):
    """Where the end of a flow is told, and the name of the secret that signs it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    url: Text = Field(max_length=LONGEST_URL)
    secret_env: Text | None = Field(default=None, max_length=LONGEST_NAME)


class Start(Asked):
    """How a flow is started."""

    model_config = example(inputs={"version": "1.2"}, key="release-1.2")

    inputs: JsonObject = Field(default_factory=dict, max_length=MOST_INPUTS)
    key: Text | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_KEY,
        description="One flow for ever under this key; another is refused.",
    )
    hold: bool = Field(default=False, description="Nothing of it begins until it is released.")
    webhook: Webhook | None = None
    queue: Text | None = Field(
        default=None, min_length=1, max_length=LONGEST_NAME, description="For steps that name none."
    )
    reason: Text | None = Field(default=None, max_length=1_000, description="Why; it goes into the event log.")


class NewFlow(Start):
    """A flow to be started: of a template, or as it is defined here."""

    template: Text | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_KEY,
        description="The newest of that name, or a version by its id.",
    )
    definition: JsonObject | None = Field(
        default=None, description="What a flow file would say. Steps that say themselves what is run need more rights."
    )

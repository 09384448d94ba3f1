"""Models of runs and workstreams, and of requests to start one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from keptwork.core.validation import LONGEST_KEY, LONGEST_NAME
from keptwork.http.dependencies import JsonObject, Text
from keptwork.http.idempotency import Asked, example
from keptwork.http.routes.approvals import Approval
from keptwork.http.routes.events import Moved
from keptwork.http.routes.jobs import Progress as Said
from keptwork.http.routes.steps import OwnStep

MOST_INPUTS = 1_000
LONGEST_URL = 2_000


class Flow(BaseModel):
    """A flow, as in lists."""

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
    """The flow. `created` is false if the key was used before: the flow is then the existing one."""

    created: bool


class Version(BaseModel):
    """The version of a definition that a flow uses."""

    id: str
    version: int


class WholeFlow(Flow):
    """A flow with all of its details. `inside_of` is the flow of which it is a step."""

    template: Version | None
    cost_micros: int
    lost_calls: int
    lost_micros: int
    steps: list[OwnStep]
    questions: list[Approval]
    inside_of: str | None
    events: list[Moved]


class CostOfStep(BaseModel):
    """The cost of one step."""

    id: str
    name: str
    cost_micros: int
    cost_usd: str
    lost_calls: int
    lost_micros: int
    reserved_micros: int


class CostOfFlow(BaseModel):
    """The cost of model calls by the ledger, in total and by step. Steps without calls are left out. Lost calls count
    at their maximum cost; calls in flight are only reserved."""

    id: str
    cost_micros: int
    cost_usd: str
    lost_calls: int
    lost_micros: int
    reserved_micros: int
    steps: list[CostOfStep]


class RunningStep(BaseModel):
    """A running step, its start time, and the progress that it reported last."""

    id: str
    name: str
    started_at: str | None
    said: Said | None


class FlowProgress(BaseModel):
    """The progress of a flow. `now` has the running steps, or the first of very many. The remaining time is an estimate
    from earlier flows of the same name, given enough workers; null without earlier flows."""

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
    """The URL that receives a message when a flow ends, and the name of the secret that signs it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    url: Text = Field(max_length=LONGEST_URL)
    secret_env: Text | None = Field(default=None, max_length=LONGEST_NAME)


class Start(Asked):
    """A request to start a flow."""

    model_config = example(inputs={"version": "1.2"}, key="release-1.2")

    inputs: JsonObject = Field(default_factory=dict, max_length=MOST_INPUTS)
    key: Text | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_KEY,
        description="Unique key: one flow per key, without expiry. A different flow is rejected.",
    )
    hold: bool = Field(default=False, description="Start no step until the hold is lifted.")
    webhook: Webhook | None = None
    queue: Text | None = Field(
        default=None, min_length=1, max_length=LONGEST_NAME, description="Queue of steps that name none."
    )
    reason: Text | None = Field(default=None, max_length=1_000, description="Reason, recorded in the event log.")


class NewFlow(Start):
    """A flow to start, from a template or from a definition."""

    template: Text | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_KEY,
        description="Template name for the newest version, or the ID of a version.",
    )
    definition: JsonObject | None = Field(
        default=None, description="The content of a flow file. Steps that define programs need more rights."
    )

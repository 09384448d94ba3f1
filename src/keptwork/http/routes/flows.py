"""Routes that runs and workstreams share, and functions that start or change a flow of either kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.audit import events
from keptwork.core.durations import moment_us
from keptwork.core.validation import LONGEST_KEY, LONGEST_NAME
from keptwork.errors import BadInput
from keptwork.flows import commands as flows
from keptwork.flows import definition, live_view, start
from keptwork.flows import queries as stories
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import Kind
from keptwork.flows.transaction import Actor
from keptwork.http.auth import Principal, Reads, Writes
from keptwork.http.dependencies import (
    After,
    Db,
    JsonObject,
    Most,
    Name,
    Search,
    Text,
    answer,
    fails,
    only,
    opened,
    sealed,
)
from keptwork.http.idempotency import Asked, Does, Reason, example
from keptwork.http.routes import approvals
from keptwork.http.routes.approvals import Approval
from keptwork.http.routes.events import LIST as EVENTS
from keptwork.http.routes.events import Events, Moment, Moved
from keptwork.http.routes.events import shown as event_shown
from keptwork.http.routes.jobs import Progress as Said
from keptwork.http.routes.jobs import States
from keptwork.http.routes.steps import OwnStep, Steps, own_step, step_page
from keptwork.http.routes.webhooks import Webhooks, webhook_page
from keptwork.http.submitted_flows import Definitions
from keptwork.store import Store
from keptwork.store.contract.flows_steps import FlowFilter

# Models of runs and workstreams, and of requests to start one.


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


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

Deed = Callable[[Store, FlowRef, Actor], Awaitable[Any]]

CHANGES = fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight)
STARTS = fails(
    errors.NotFound,
    errors.BadFlow,
    errors.ProgramsRefused,
    errors.FlowKeyReused,
    errors.KeyReused,
    errors.RequestInFlight,
)


# --- functions for routes of either kind


async def started(
    kind: Kind, model: type[Flow], asked: NewFlow, caller: Principal, defines: Definitions, does: Does, **how: Any
) -> Response:
    """Start a flow of a kind, and return it with whether it is new."""
    own = await _defined(kind, asked, defines)  # before any lock
    how |= how_started(asked, caller)

    async def work(store: Store) -> dict[str, Any]:
        before = await store.now()
        if own is not None:
            ref = await flows.start(store, own, asked.inputs, tenant_id=caller.tenant_id, **how)
        else:
            named = asked.template or ""
            template = await start.find_of_kind(store, caller.tenant_id, named, kind.name)
            newest = start.by_name(template, named)
            ref = await flows.start_template(store, template, asked.inputs, newest=newest, **how)
        return await as_started(store, ref, model, before)

    return await does(asked, work, status=201)


def how_started(asked: Start, caller: Principal) -> dict[str, Any]:
    """Return the settings that every start of a flow has."""
    hook = None if asked.webhook is None else asked.webhook.model_dump(exclude_none=True)
    return {"hold": asked.hold, "queue": asked.queue, "webhook": hook, "actor": Actor(caller.actor, asked.reason)}


async def as_started(store: Store, ref: FlowRef, model: type[Flow], before: int) -> dict[str, Any]:
    """Return a started flow, and whether it was created at or after `before`."""
    row = await flows.row_of(store, ref)
    return only(model, {**stories.flow_json(ref.kind, row), "created": row["created_at"] >= before})


async def _defined(kind: Kind, asked: NewFlow, defines: Definitions) -> definition.Flow | None:
    """Return the definition in the request, or None if the request names a template."""
    if (asked.template is None) == (asked.definition is None):
        raise BadInput(what=f"a {kind.name} is of one of both: give a template, or a definition")
    return None if asked.definition is None else await defines.flow(asked.definition, kind.name)


async def done_to(
    kind: Kind, model: type[Flow], deed: Deed, id: str, caller: Principal, does: Does, asked: Reason
) -> Response:
    """Change a flow, and return its new state."""

    async def work(store: Store) -> dict[str, Any]:
        ref = await stories.find(store, kind, caller.tenant_id, id)
        await deed(store, ref, Actor(caller.actor, asked.reason))
        return only(model, stories.flow_json(kind, await flows.row_of(store, ref)))

    return await does(asked, work)


def whole(story: stories.Story) -> dict[str, Any]:
    """Return one flow with all of its details."""
    facts = stories.story_json(story)
    return {
        **facts,
        "steps": [own_step(one) for one in facts["steps"]],
        "questions": [approvals.shown(one) for one in story.asked],
        "events": [event_shown(event) for event in story.events],
    }


# --- routes that both kinds have


def told(about: str) -> Callable[[Endpoint], Endpoint]:
    """Set the description of a route, which depends on the kind."""

    def tell(endpoint: Endpoint) -> Endpoint:
        endpoint.__doc__ = about
        return endpoint

    return tell


def add_common(router: APIRouter, kind: Kind, lists: type[BaseModel], listed: type[Flow], shown: type[Flow]) -> None:
    """Add the routes that flows of every kind have.

    The models: `lists` for several flows, `listed` for one of them, `shown` for one with all of its details.
    """
    many = f"{kind.name}s"

    @router.get("", response_model=lists, responses=fails(errors.BadCursor))
    @told(f"List {many}, newest first.")
    async def listing(
        caller: Reads,
        store: Db,
        state: States = None,
        name: Name = None,
        inside: Annotated[bool, Query(description="Include flows inside other flows.")] = False,
        text: Search = None,
        since: Moment = None,
        until: Moment = None,
        after: After = None,
        limit: Most = 50,
    ) -> Response:
        states, now = stories.states_named(kind.flow, state or []), await store.now() if since or until else 0
        made = (moment_us(said, now) if said else None for said in (since, until))
        wanted = FlowFilter(caller.tenant_id, states, name, inside, *made)
        page = await stories.page(store, kind, wanted, after=opened(many, after), limit=limit, text=text)
        rows = [only(listed, stories.flow_json(kind, row)) for row in page.flows]
        return answer({many: rows, "next": sealed(many, page.next)})

    @router.get("/{id}", response_model=shown, responses=fails(errors.NotFound))
    @told(f"Show one {kind.name}: its steps, open approvals, and latest events.")
    async def show(id: str, caller: Reads, store: Db) -> Response:
        story = await stories.story(store, await stories.find(store, kind, caller.tenant_id, id))
        return answer(only(shown, whole(story)))

    @router.get("/{id}/steps", response_model=Steps, responses=fails(errors.NotFound, errors.BadCursor))
    @told(f"List the steps of a {kind.name}, in the order of its definition.")
    async def steps(id: str, caller: Reads, store: Db, after: After = None, limit: Most = 100) -> Response:
        return await step_page(store, await stories.find(store, kind, caller.tenant_id, id), after, limit)

    @router.get("/{id}/progress", response_model=FlowProgress, responses=fails(errors.NotFound))
    @told(f"Show the progress of a {kind.name}, with an estimate of the remaining time.")
    async def progress(id: str, caller: Reads, store: Db) -> Response:
        found = await live_view.read(store, await stories.find(store, kind, caller.tenant_id, id))
        return answer(live_view.as_json(found))

    @router.get("/{id}/cost", response_model=CostOfFlow, responses=fails(errors.NotFound))
    @told(f"Show the cost of a {kind.name}, in total and by step.")
    async def cost(id: str, caller: Reads, store: Db) -> Response:
        return answer(await stories.cost_json(store, await stories.find(store, kind, caller.tenant_id, id)))

    @router.get("/{id}/events", response_model=Events, responses=fails(errors.NotFound, errors.BadCursor))
    @told(f"List the events of a {kind.name} and everything inside it, oldest first.")
    async def history(
        id: str,
        caller: Reads,
        store: Db,
        own: Annotated[bool, Query(description="Only moves of the flow itself.")] = False,
        after: After = None,
        limit: Most = 100,
    ) -> Response:
        wanted = await stories.history(store, await stories.find(store, kind, caller.tenant_id, id), own=own)
        found = await events.page(store, wanted, after=opened(EVENTS, after), limit=limit)
        return answer({"events": [event_shown(one) for one in found.events], "next": sealed(EVENTS, found.next)})

    @router.get("/{id}/webhooks", response_model=Webhooks, responses=fails(errors.NotFound, errors.BadCursor))
    @told(f"List the webhook deliveries of a {kind.name}.")
    async def webhooks(id: str, caller: Reads, store: Db, after: After = None, limit: Most = 50) -> Response:
        ref = await stories.find(store, kind, caller.tenant_id, id)
        return await webhook_page(store, caller.tenant_id, ref.public_id, None, after, limit)

    @router.post("/{id}/hold", response_model=listed, responses=CHANGES)
    @told(f"Hold a {kind.name}: no new steps start, and running steps finish.")
    async def hold(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
        return await done_to(kind, listed, flows.hold, id, caller, does, asked or Reason())

    @router.post("/{id}/release", response_model=listed, responses=CHANGES)
    @told(f"Lift the hold of a {kind.name}.")
    async def release(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
        return await done_to(kind, listed, flows.let_go, id, caller, does, asked or Reason())

"""Routes of agent jobs: create, list, show, and cancel them, and read their records and transcripts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.agents import commands as agents
from keptwork.agents import skills as service
from keptwork.agents import transcripts
from keptwork.agents.skills import Skill as Declared
from keptwork.agents.skills import skills
from keptwork.core.ids import states_named
from keptwork.core.lifecycles import AGENT
from keptwork.core.validation import LARGEST_INT, LONGEST_KEY, LONGEST_NAME
from keptwork.flows.steps import tool as tool_tools
from keptwork.http.auth import Adds, Reads, Writes
from keptwork.http.dependencies import After, Db, Most, Text, Trace, answer, fails, only, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.events import Moved, shown
from keptwork.http.routes.jobs import Cancel, Seconds, States
from keptwork.settings import Config
from keptwork.store import Store

router = APIRouter(prefix="/api/agent-jobs", tags=["agent jobs"])

LIST, TRANSCRIPT = "agent jobs", "transcript"

Dollars = Annotated[Text, Field(min_length=1, max_length=50)]
Wait = Annotated[Text, Field(min_length=1, max_length=100)]


class Agent(BaseModel):
    """An agent job: its task, the choices made for it with reasons, and its usage and cost. Amounts are whole
    millionths of a US dollar (`micros`), and US dollars."""

    model_config = ConfigDict(protected_namespaces=())

    id: str
    state: str
    status: str
    job_id: str | None
    description: str
    skill: str | None
    tier: str | None
    provider: str | None
    model: str | None
    reasons: Any
    retry_count: int
    max_retries: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost_micros: int
    cost_usd: float
    state_history: list[Any]
    reason: str | None
    actor: str | None
    llm_response: str | None
    correlation_id: str | None
    created_at: str
    updated_at: str
    started_at: str | None
    completed_at: str | None


class Agents(BaseModel):
    """A page of agent jobs, and the cursor of the next page."""

    agent_jobs: list[Agent]
    next: str | None


class Audit(BaseModel):
    """The record of a finished agent job. `job_id` is the agent job; `carried_out_by` is the job that ran it."""

    job_id: str
    carried_out_by: str | None
    description: str
    status: str
    reason: str | None
    state_transitions: list[Any]
    agent: Any
    retry_count: int
    max_retries: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost_micros: int
    cost_usd: float
    llm_response: str | None
    started_at: str
    completed_at: str
    duration_ms: int


class WholeAgent(Agent):
    """An agent job with its result, its record if it has finished, and its moves."""

    result: Any
    audit: Audit | None
    events: list[Moved]


class Line(BaseModel):
    """A message of a conversation: the attempt of the job (`round`), the position, the role, and the text."""

    round: int
    position: int
    hash: str
    size: int
    at: str
    role: str
    text: str
    uses: list[Any] | None
    answers: Any
    failed: bool


class Transcript(BaseModel):
    """A page of messages, and the cursor of the next page."""

    transcript: list[Line]
    next: str | None


class NewAgent(Asked):
    """A task for an agent. Omitted settings are chosen when a worker starts it."""

    model_config = example(description="Summarise the changelog in three lines", tier="haiku", budget_usd="0.05")

    description: str = Field(description=f"Task for the agent. Maximum: {agents.LONGEST_DESCRIPTION:,} bytes.")
    skill: Text | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)
    tier: Text | None = Field(
        default=None, max_length=50, description="haiku, sonnet, or opus. Default: chosen by task difficulty."
    )
    output_schema: dict[str, Any] | None = Field(default=None, description="JSON Schema that the answer must match.")
    max_retries: int = Field(default=agents.USUAL_RETRIES, ge=0, le=agents.MOST_RETRIES)
    retry_base: Wait | Seconds = Field(default="1s", description="Delay before the first retry.")
    budget_usd: Dollars | None = Field(default=None, description='Maximum cost in US dollars, such as "0.50".')
    queue: str = Field(default="default", min_length=1, max_length=LONGEST_NAME)
    priority: int = Field(default=0, ge=-LARGEST_INT, le=LARGEST_INT)
    key: str | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_KEY,
        description="Unique key: one agent job per key, without expiry.",
    )
    correlation_id: str | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)


class CancelledAgent(BaseModel):
    """The outcome of a cancel request: cancelled, or asked to stop."""

    outcome: str
    agent_job: Agent


@router.post("", status_code=201, response_model=Agent, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def create(asked: NewAgent, caller: Adds, does: Does, trace: Trace) -> Response:
    """Create an agent job. A worker runs it, and another worker continues it after a crash."""
    said = asked.model_dump(exclude={"request_id", "output_schema"})
    rest: dict[str, Any] = {"tenant_id": caller.tenant_id, "actor": caller.actor, "trace_id": trace}
    new = agents.asked(schema=asked.output_schema, **said, **rest)

    async def work(store: Store) -> dict[str, Any]:
        started = await agents.start(store, new)
        return _agent(await agents.find(store, caller.tenant_id, started.id))

    return await does(asked, work, status=201)


@router.get("", response_model=Agents, responses=fails(errors.BadCursor))
async def listing(caller: Reads, store: Db, state: States = None, after: After = None, limit: Most = 50) -> Response:
    """List agent jobs, newest first."""
    states = states_named(AGENT, state or [])
    page = await agents.page(store, caller.tenant_id, states=states, after=opened(LIST, after), limit=limit)
    return answer({"agent_jobs": [_agent(row) for row in page.agents], "next": sealed(LIST, page.next)})


@router.get("/{id}", response_model=WholeAgent, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """Show one agent job, by its ID or the ID of its job. Its messages are in the transcript."""
    story = await agents.story(store, caller.tenant_id, id)
    record = None if story.audit is None else only(Audit, agents.audit_as_json(story.audit))
    events = [shown(event) for event in story.events]
    return answer({**_agent(story.agent), "result": story.result, "audit": record, "events": events})


@router.get("/{id}/audit", response_model=Audit, responses=fails(errors.NotFound))
async def audit(id: str, caller: Reads, store: Db) -> Response:
    """Show the record of a finished agent job. An unfinished agent job has none."""
    return answer(only(Audit, agents.audit_as_json(await agents.audit(store, caller.tenant_id, id))))


@router.get("/{id}/transcript", response_model=Transcript, responses=fails(errors.NotFound, errors.BadCursor))
async def transcript(id: str, caller: Reads, store: Db, after: After = None, limit: Most = 50) -> Response:
    """List the messages of an agent job in order. Each attempt starts a new conversation."""
    row = await agents.find(store, caller.tenant_id, id)
    place = opened(TRANSCRIPT, after)
    page = await transcripts.page(store, caller.tenant_id, row["job_id"] or 0, after=place, limit=limit)
    return answer({"transcript": [line(said) for said in page.said], "next": sealed(TRANSCRIPT, page.next)})


@router.post(
    "/{id}/cancel",
    response_model=CancelledAgent,
    responses=fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight),
)
async def cancel(id: str, caller: Writes, does: Does, asked: Annotated[Cancel | None, Body()] = None) -> Response:
    """Cancel an agent job. A running one receives a cancellation request; with `hard`, it is cancelled now."""
    how = asked or Cancel()

    async def work(store: Store) -> dict[str, Any]:
        done = await agents.cancel(store, caller.tenant_id, id, hard=how.hard, reason=how.reason, actor=caller.actor)
        row = await agents.find(store, caller.tenant_id, id)
        return {"outcome": done.replace(" ", "_"), "agent_job": _agent(row)}

    return await does(how, work)


def _agent(row: agents.Row) -> dict[str, Any]:
    return only(Agent, agents.as_json(row))


def line(said: transcripts.Said) -> dict[str, Any]:
    """Return a message as JSON data. Missing fields get their default."""
    return only(Line, {"uses": None, "answers": None, "failed": False, **transcripts.as_json(said)})


# Routes that show the skills of agents and the tools, as configured by the server's `keptwork.toml`.


skills_router = APIRouter(prefix="/api/skills", tags=["skills"])
profiles = APIRouter(prefix="/api/tools", tags=["tools"])


class Skill(BaseModel):
    """A skill of agents, and the keywords that select it."""

    name: str
    description: str
    keywords: list[str]
    tools: list[str]
    output_schema: Any


class Skills(BaseModel):
    """The project's own skills, then the built-in skills that they do not replace."""

    skills: list[Skill]


class WholeSkill(Skill):
    """A skill, and its instructions for the model."""

    instructions: str


class Route(Asked):
    """A task, as you would give it to an agent."""

    model_config = example(text="Fix the crash in the parser")

    text: str = Field(max_length=agents.LONGEST_DESCRIPTION)


class Score(BaseModel):
    """The points of a skill for a task, and the matching keywords."""

    skill: str
    points: int
    keywords: list[str]


class Tier(BaseModel):
    """The model tier for a task, and why."""

    tier: str
    points: int
    why: str


class Routed(BaseModel):
    """The skill and the model tier for a task, and why."""

    skill: str
    why: str
    scores: list[Score]
    model: Tier


class Breaker(BaseModel):
    """The circuit breaker of a tool."""

    failure_threshold: int
    cooldown_seconds: float
    success_threshold: int


class Tool(BaseModel):
    """A tool profile, without the path of its program and without its environment."""

    name: str
    description: str
    timeout: str
    expected_exit_codes: list[int]
    retry_on_failure: bool
    idempotent: bool
    approval: bool
    arguments: Any
    memory: int | None
    cpu: str | None
    breaker: Breaker


class Tools(BaseModel):
    """The declared tools."""

    tools: list[Tool]


async def _config(request: Request) -> Config:
    found: Config = request.app.state.config
    return found


Configured = Annotated[Config, Depends(_config)]


@skills_router.get("", response_model=Skills, responses=fails(), name="listing")
async def list_skills(caller: Reads, config: Configured) -> Response:
    """List the skills."""
    return answer({"skills": [only(Skill, service.as_json(one)) for one in await _read(config)]})


@skills_router.get("/{name}", response_model=WholeSkill, responses=fails(errors.NotFound), name="show")
async def show_skill(name: str, caller: Reads, config: Configured) -> Response:
    """Show one skill: its keywords, its tools, and its instructions for the model."""
    found = service.find(await _read(config), name)
    return answer({**only(Skill, service.as_json(found)), "instructions": found.instructions})


@skills_router.post("/route", response_model=Routed, responses=fails())
async def route(asked: Route, caller: Reads, config: Configured, does: Does) -> Response:
    """Show which skill and model tier a task would use, and why. Nothing is started."""
    return does.unremembered(asked, service.routed_json(service.routed(asked.text, await _read(config))))


@profiles.get("", response_model=Tools, responses=fails())
async def tool_listing(caller: Reads, config: Configured) -> Response:
    """List the tools: timeouts, exit codes, and circuit breakers."""
    return answer({"tools": [_tool(config, name) for name in config.tools]})


@profiles.get("/{name}", response_model=Tool, responses=fails(errors.NotFound))
async def tool(name: str, caller: Reads, config: Configured) -> Response:
    """Show one tool."""
    return answer(_tool(config, name))


def _tool(config: Config, name: str) -> dict[str, Any]:
    return only(Tool, tool_tools.as_json(config, name, tool_tools.find(config, name)))


async def _read(config: Config) -> list[Declared]:
    """Read the skills each time, because users edit them. An invalid skill is an error of the server, in its log."""
    try:
        return await asyncio.to_thread(skills, config.skills)
    except errors.BadInput as wrong:
        raise RuntimeError(f"the skills cannot be read: {wrong}") from wrong

"""Routes that show the skills of agents and the tools, as configured by the server's `keptwork.toml`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.agents import commands as agents
from keptwork.agents import skills_service as service
from keptwork.agents.skills import Skill as Declared
from keptwork.agents.skills import skills
from keptwork.flows.steps import tool_tools
from keptwork.http.auth import Reads
from keptwork.http.dependencies import answer, fails, only
from keptwork.http.idempotency import Asked, Does, example
from keptwork.settings import Config

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

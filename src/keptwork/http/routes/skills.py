"""What agents are good at, and the tools there are, as the server's `keptwork.toml` has them; to be read only."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.agent.skill import Skill as Declared
from keptwork.agent.skill import skills
from keptwork.config import Config
from keptwork.http.auth import Reads
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.pages import answer, fails, only
from keptwork.service import agents, tools
from keptwork.service import skills as service

router = APIRouter(prefix="/api/skills", tags=["skills"])
profiles = APIRouter(prefix="/api/tools", tags=["tools"])


class Skill(BaseModel):
    """What an agent can be asked to do, and the words that point to it."""

    name: str
    description: str
    keywords: list[str]
    tools: list[str]
    output_schema: Any


class Skills(BaseModel):
    """The project's own skills, then the built-in ones that none of them replaces."""

    skills: list[Skill]


class WholeSkill(Skill):
    """A skill, and what the model is told."""

    instructions: str


class Route(Asked):
    """A task, as it would be given to an agent."""

    model_config = example(text="Fix the crash in the parser")

    text: str = Field(max_length=agents.LONGEST_DESCRIPTION)


class Score(BaseModel):
    """How many points a skill has for a task, and the words they are for."""

    skill: str
    points: int
    keywords: list[str]


class Tier(BaseModel):
    """Which tier of models a task is worth, and why."""

    tier: str
    points: int
    why: str


class Routed(BaseModel):
    """Which skill and which tier of models a task would go to, and why."""

    skill: str
    why: str
    scores: list[Score]
    model: Tier


class Breaker(BaseModel):
    """When a tool is left alone for a while."""

    failure_threshold: int
    cooldown_seconds: float
    success_threshold: int


class Tool(BaseModel):
    """A tool profile; where its program is and what it is given of the machine's environment is not told here."""

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
    """The tools that are declared."""

    tools: list[Tool]


async def _config(request: Request) -> Config:
    found: Config = request.app.state.config
    return found


Configured = Annotated[Config, Depends(_config)]


@router.get("", response_model=Skills, responses=fails())
async def listing(caller: Reads, config: Configured) -> Response:
    """The skills there are."""
    return answer({"skills": [only(Skill, service.as_json(one)) for one in await _read(config)]})


@router.get("/{name}", response_model=WholeSkill, responses=fails(errors.NotFound))
async def show(name: str, caller: Reads, config: Configured) -> Response:
    """One skill: what points to it, what it may use, and what the model is told."""
    found = service.find(await _read(config), name)
    return answer({**only(Skill, service.as_json(found)), "instructions": found.instructions})


@router.post("/route", response_model=Routed, responses=fails())
async def route(asked: Route, caller: Reads, config: Configured, does: Does) -> Response:
    """Says which skill and which tier of models a task would go to, and why. Nothing is started."""
    return does.unremembered(asked, service.routed_json(service.routed(asked.text, await _read(config))))


@profiles.get("", response_model=Tools, responses=fails())
async def tool_listing(caller: Reads, config: Configured) -> Response:
    """The tools there are: how long each may take, when it counts as failed, and when it is left alone."""
    return answer({"tools": [_tool(config, name) for name in config.tools]})


@profiles.get("/{name}", response_model=Tool, responses=fails(errors.NotFound))
async def tool(name: str, caller: Reads, config: Configured) -> Response:
    """One tool."""
    return answer(_tool(config, name))


def _tool(config: Config, name: str) -> dict[str, Any]:
    return only(Tool, tools.as_json(config, name, tools.find(config, name)))


async def _read(config: Config) -> list[Declared]:
    """Each time anew, for people change them. What is wrong with one is the server's to put right, and in its log."""
    try:
        return await asyncio.to_thread(skills, config.skills)
    except errors.BadInput as wrong:
        raise RuntimeError(f"the skills cannot be read: {wrong}") from wrong

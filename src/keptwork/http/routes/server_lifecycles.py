"""Routes that show the declared lifecycles."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core import render
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.http.auth import Reads
from keptwork.http.dependencies import answer, fails

lifecycles_router = APIRouter(prefix="/api/lifecycles", tags=["lifecycles"])


class State(BaseModel):
    """A state, and whether it is final."""

    name: str
    final: bool


class Move(BaseModel):
    """A move: its trigger, its states, and the event that it writes."""

    trigger: str
    verb: str
    source: str | None = Field(alias="from")
    to: str
    event: str
    guard: str | None


class Lifecycle(BaseModel):
    """A declared lifecycle."""

    name: str
    states: list[State]
    moves: list[Move]


class Lifecycles(BaseModel):
    """All lifecycles."""

    lifecycles: list[Lifecycle]


@lifecycles_router.get("", response_model=Lifecycles, responses=fails())
async def listing(caller: Reads) -> Response:
    """List the lifecycles."""
    return answer({"lifecycles": [render.as_json(one) for one in LIFECYCLES.values()]})


@lifecycles_router.get("/{name}", response_model=Lifecycle, responses=fails(errors.NotFound))
async def show(name: str, caller: Reads) -> Response:
    """Show one lifecycle: its states and moves."""
    if name not in LIFECYCLES:
        raise errors.NotFound(what="lifecycle", id=repr(name), listing="keptwork lifecycles list")
    return answer(render.as_json(LIFECYCLES[name]))

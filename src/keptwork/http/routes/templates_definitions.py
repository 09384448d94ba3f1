"""Routes that check flow definitions without storing them, and return their JSON Schema."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field, RootModel
from starlette.responses import Response

from keptwork import errors
from keptwork.flows import graph
from keptwork.flows.definition import Flow
from keptwork.http import submitted_flows_submissions
from keptwork.http.auth import Reads
from keptwork.http.dependencies import JsonObject, answer, fails
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.submitted_flows import WHERE
from keptwork.store import Store

definitions_router = APIRouter(prefix="/api/flows", tags=["flows"])


class Schema(RootModel[dict[str, Any]]):
    """A JSON Schema."""


class Check(Asked):
    """A definition to check."""

    model_config = example(definition={"name": "release", "steps": [{"id": "test", "tool": "pytest"}]})

    definition: JsonObject = Field(description="The content of a flow file.")


class Checked(BaseModel):
    """A valid definition: its steps by level, and the steps that define programs to run. Steps of one level can run
    concurrently."""

    name: str
    kind: str
    levels: list[list[str]]
    programs: list[str]


@definitions_router.get("/schema", response_model=Schema, responses=fails())
async def schema(caller: Reads) -> Response:
    """Show the JSON Schema of flow definitions."""
    return answer(Flow.published_schema())


@definitions_router.post(
    "/check", response_model=Checked, responses=fails(errors.BadFlow, errors.KeyReused, errors.RequestInFlight)
)
async def check(asked: Check, caller: Reads, does: Does) -> Response:
    """Check a flow definition and report every problem with its location. Nothing is stored or started."""

    flow = await asyncio.to_thread(submitted_flows_submissions.read, asked.definition, WHERE)

    async def work(_: Store) -> dict[str, Any]:
        told = {"name": flow.name, "kind": flow.kind, "programs": submitted_flows_submissions.programs(flow)}
        return {**told, "levels": graph.levels(flow.dependencies)}

    return await does(asked, work)

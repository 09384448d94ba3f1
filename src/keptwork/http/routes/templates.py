"""Routes of templates: flow definitions, stored by version and started by name."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, Field, RootModel
from starlette.responses import Response

from keptwork import errors
from keptwork.core.validation import LONGEST_KEY
from keptwork.flows import commands as flows
from keptwork.flows import graph
from keptwork.flows import start as service
from keptwork.flows.definition import Flow
from keptwork.http import submitted_flows
from keptwork.http.auth import Adds, Reads, Writes
from keptwork.http.dependencies import After, Db, JsonObject, Most, Name, Text, Trace, answer, fails, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.flows import Start, StartedFlow, as_started, how_started
from keptwork.http.submitted_flows import WHERE, Defines
from keptwork.store import Store

router = APIRouter(prefix="/api/templates", tags=["templates"])

LIST = "templates"

Named = Annotated[
    Text,
    Path(
        min_length=1,
        max_length=LONGEST_KEY,
        description="Template name for the newest version, or the ID of a version.",
    ),
]


class Template(BaseModel):
    """A version of a definition. An unchanged definition is the same version."""

    id: str
    name: str
    version: int
    kind: str
    hash: str
    created_at: str


class WholeTemplate(Template):
    """A version with its definition."""

    definition: dict[str, Any]


class Templates(BaseModel):
    """A page of templates, and the cursor of the next page."""

    templates: list[Template]
    next: str | None


class NewTemplate(Asked):
    """A definition to store."""

    model_config = example(
        definition={"name": "release", "kind": "run", "steps": [{"id": "test", "tool": "pytest", "args": ["-q"]}]}
    )

    definition: JsonObject = Field(
        description="The content of a flow file. Steps that define programs need more rights."
    )


@router.get("", response_model=Templates, responses=fails(errors.BadCursor))
async def listing(
    caller: Reads,
    store: Db,
    name: Name = None,
    all: Annotated[bool, Query(description="List every version, not only the newest.")] = False,
    after: After = None,
    limit: Most = 50,
) -> Response:
    """List the stored definitions by name."""
    page = await service.page(store, caller.tenant_id, name=name, every=all, after=opened(LIST, after), limit=limit)
    return answer({"templates": [service.as_json(one) for one in page.templates], "next": sealed(LIST, page.next)})


@router.post(
    "",
    status_code=201,
    response_model=Template,
    responses=fails(errors.BadFlow, errors.ProgramsRefused, errors.KeyReused, errors.RequestInFlight),
)
async def put(asked: NewTemplate, caller: Writes, defines: Defines, does: Does) -> Response:
    """Store a definition as the next version of its name. An unchanged definition returns the newest version."""
    flow = await defines.flow(asked.definition)

    async def work(store: Store) -> dict[str, Any]:
        return service.as_json(await service.put(store, caller.tenant_id, flow))

    return await does(asked, work, status=201)


@router.get("/{name}", response_model=WholeTemplate, responses=fails(errors.NotFound))
async def show(name: Named, caller: Reads, store: Db) -> Response:
    """Show one definition."""
    return answer(service.as_json(await service.find(store, caller.tenant_id, name), whole=True))


@router.post(
    "/{name}/start",
    status_code=201,
    response_model=StartedFlow,
    responses=fails(errors.NotFound, errors.FlowKeyReused, errors.KeyReused, errors.RequestInFlight),
)
async def start(
    name: Named, caller: Adds, does: Does, trace: Trace, asked: Annotated[Start | None, Body()] = None
) -> Response:
    """Start a run or workstream from a stored definition. Workers run it."""
    given = asked or Start()
    how = {**how_started(given, caller), "key": given.key, "trace_id": trace}

    async def work(store: Store) -> dict[str, Any]:
        before, template = await store.now(), await service.find(store, caller.tenant_id, name)
        newest = service.by_name(template, name)
        ref = await flows.start_template(store, template, given.inputs, newest=newest, **how)
        return await as_started(store, ref, StartedFlow, before)

    return await does(given, work, status=201)


# Routes that check flow definitions without storing them, and return their JSON Schema.


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

    flow = await asyncio.to_thread(submitted_flows.read, asked.definition, WHERE)

    async def work(_: Store) -> dict[str, Any]:
        told = {"name": flow.name, "kind": flow.kind, "programs": submitted_flows.programs(flow)}
        return {**told, "levels": graph.levels(flow.dependencies)}

    return await does(asked, work)

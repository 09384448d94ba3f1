"""Definitions of flows, kept by version, and started by name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LONGEST_KEY
from keptwork.http.auth import Adds, Reads, Writes
from keptwork.http.cursors import opened, sealed
from keptwork.http.definitions import Defines
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.pages import After, Db, JsonObject, Most, Name, Text, answer, fails
from keptwork.http.routes.flow_models import Start, StartedFlow
from keptwork.http.routes.flows import as_started, how_started
from keptwork.http.trace import Trace
from keptwork.service import flows
from keptwork.service import templates as service
from keptwork.store import Store

router = APIRouter(prefix="/api/templates", tags=["templates"])

LIST = "templates"

Named = Annotated[
    Text, Path(min_length=1, max_length=LONGEST_KEY, description="The newest of that name, or a version by its id.")
]


class Template(BaseModel):
    """A version of a definition; the same definition again is the same version."""

    id: str
    name: str
    version: int
    kind: str
    hash: str
    created_at: str


class WholeTemplate(Template):
    """A version, and what it defines."""

    definition: dict[str, Any]


class Templates(BaseModel):
    """Some definitions, and where to go on if there are more."""

    templates: list[Template]
    next: str | None


class NewTemplate(Asked):
    """A definition to be kept."""

    model_config = example(
        definition={"name": "release", "kind": "run", "steps": [{"id": "test", "tool": "pytest", "args": ["-q"]}]}
    )

    definition: JsonObject = Field(
        description="What a flow file would say. Steps that say themselves what is run need more rights."
    )


@router.get("", response_model=Templates, responses=fails(errors.BadCursor))
async def listing(
    caller: Reads,
    store: Db,
    name: Name = None,
    all: Annotated[bool, Query(description="Every version, not only the newest.")] = False,
    after: After = None,
    limit: Most = 50,
) -> Response:
    """The definitions that are kept, by name."""
    page = await service.page(store, caller.tenant_id, name=name, every=all, after=opened(LIST, after), limit=limit)
    return answer({"templates": [service.as_json(one) for one in page.templates], "next": sealed(LIST, page.next)})


@router.post(
    "",
    status_code=201,
    response_model=Template,
    responses=fails(errors.BadFlow, errors.ProgramsRefused, errors.KeyReused, errors.RequestInFlight),
)
async def put(asked: NewTemplate, caller: Writes, defines: Defines, does: Does) -> Response:
    """Keeps a definition as the next version of its name; the same as the newest one is that."""
    flow = await defines.flow(asked.definition)

    async def work(store: Store) -> dict[str, Any]:
        return service.as_json(await service.put(store, caller.tenant_id, flow))

    return await does(asked, work, status=201)


@router.get("/{name}", response_model=WholeTemplate, responses=fails(errors.NotFound))
async def show(name: Named, caller: Reads, store: Db) -> Response:
    """One definition, whole."""
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
    """Starts a flow of a definition that is kept, a run or a workstream as it says. Workers carry it out."""
    given = asked or Start()
    how = {**how_started(given, caller), "key": given.key, "trace_id": trace}

    async def work(store: Store) -> dict[str, Any]:
        before, template = await store.now(), await service.find(store, caller.tenant_id, name)
        newest = service.by_name(template, name)
        ref = await flows.start_template(store, template, given.inputs, newest=newest, **how)
        return await as_started(store, ref, StartedFlow, before)

    return await does(given, work, status=201)

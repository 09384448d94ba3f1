"""The route that shows why an entity is waiting."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.core.ids_entities import public_id
from keptwork.diagnostics import diagnose
from keptwork.diagnostics.why_jobs import as_json
from keptwork.http.auth import Reads
from keptwork.http.dependencies import Db, answer, fails

router = APIRouter(prefix="/api/why", tags=["why"])


class Reason(BaseModel):
    """One cause: when it clears automatically, and what an operator can do."""

    cause: str
    says: str
    clears_at: str | None
    todo: str | None


class Why(BaseModel):
    """The causes of waiting, most immediate first."""

    id: str
    entity: str
    state: str
    status: str
    reasons: list[Reason]


@router.get("/{id}", response_model=Why, responses=fails(errors.NotFound))
async def explain(id: str, caller: Reads, store: Db) -> Response:
    """Show why a job, crew, step, run, or workstream is waiting, or why it is in its state."""
    told = await diagnose.explained(store, caller.tenant_id, id)
    state = told.row["state"]
    shown = {"id": public_id(told.lifecycle.name, told.row["id"]), "entity": told.lifecycle.name}
    return answer({**shown, "state": state, "status": state, "reasons": [as_json(one) for one in told.reasons]})

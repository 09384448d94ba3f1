"""The override: an administrator's correction of what no move can mend, told apart in every history."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LONGEST_NAME
from keptwork.http.auth import Administers
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.pages import Text, fails
from keptwork.http.routes.doctor import Finding
from keptwork.service import overrides as service
from keptwork.store import Store

router = APIRouter(prefix="/api/overrides", tags=["overrides"])


class Override(Asked):
    """What is to be put into which state, and why."""

    model_config = example(id="wf_…", to="S_FAILED", reason="its machine is gone for good", dry_run=True)

    id: str = Field(min_length=1, max_length=LONGEST_NAME, description="Whatever has a lifecycle.")
    to: Text = Field(min_length=1, max_length=LONGEST_NAME, description="Any state of its lifecycle.")
    reason: Text = Field(min_length=1, max_length=service.LONGEST_REASON, description="It goes into the event log.")
    dry_run: bool = Field(default=False, description="Only say what would change.")


class Overridden(BaseModel):
    """What it was, what it is, and what is not in order with that."""

    id: str
    entity: str
    source: str = Field(alias="from")
    state: str
    to: str
    written: bool
    findings: list[Finding]


@router.post(
    "",
    response_model=Overridden,
    responses=fails(errors.NotFound, errors.FlowBusy, errors.KeyReused, errors.RequestInFlight),
)
async def override(asked: Override, caller: Administers, does: Does) -> Response:
    """Puts something into a state, whatever state it is in, past its lifecycle. Try what is declared first."""

    async def work(store: Store) -> dict[str, Any]:
        how: dict[str, Any] = {"reason": asked.reason, "actor": caller.actor, "dry_run": asked.dry_run}
        return service.as_json(await service.overridden(store, caller.tenant_id, asked.id, asked.to, **how))

    return await does(asked, work)

"""The route of overrides: an administrator's correction of a state that no move can repair.

Every history marks an override as such.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.validation import LONGEST_NAME
from keptwork.diagnostics import overrides as service
from keptwork.http.auth import Administers
from keptwork.http.dependencies import Text, fails
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.diagnostics_doctor import Finding
from keptwork.store import Store

overrides_router = APIRouter(prefix="/api/overrides", tags=["overrides"])


class Override(Asked):
    """The new state of an entity, and the reason."""

    model_config = example(id="wf_…", to="S_FAILED", reason="its machine is gone for good", dry_run=True)

    id: str = Field(min_length=1, max_length=LONGEST_NAME, description="ID of an entity with a lifecycle.")
    to: Text = Field(min_length=1, max_length=LONGEST_NAME, description="Any state of its lifecycle.")
    reason: Text = Field(
        min_length=1, max_length=service.LONGEST_REASON, description="Reason, recorded in the event log."
    )
    dry_run: bool = Field(default=False, description="Only show what would change.")


class Overridden(BaseModel):
    """The state before and after an override, and the problems that the new state has."""

    id: str
    entity: str
    source: str = Field(alias="from")
    state: str
    to: str
    written: bool
    findings: list[Finding]


@overrides_router.post(
    "",
    response_model=Overridden,
    responses=fails(errors.NotFound, errors.FlowBusy, errors.KeyReused, errors.RequestInFlight),
)
async def override(asked: Override, caller: Administers, does: Does) -> Response:
    """Force an entity into a state, regardless of its current state and its lifecycle. Try declared repairs first."""

    async def work(store: Store) -> dict[str, Any]:
        how: dict[str, Any] = {"reason": asked.reason, "actor": caller.actor, "dry_run": asked.dry_run}
        return service.as_json(await service.overridden(store, caller.tenant_id, asked.id, asked.to, **how))

    return await does(asked, work)

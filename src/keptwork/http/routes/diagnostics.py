"""The route that shows why an entity is waiting."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.ids import public_id
from keptwork.core.validation import LONGEST_NAME
from keptwork.diagnostics import diagnose
from keptwork.diagnostics import overrides as service
from keptwork.diagnostics.doctor import runner
from keptwork.diagnostics.doctor.finding import as_json as finding_json
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.diagnostics.why_jobs import as_json
from keptwork.http.auth import Administers, Reads
from keptwork.http.dependencies import Db, Text, answer, fails
from keptwork.http.idempotency import Asked, Does, example
from keptwork.store import Store

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


# Routes of the doctor: find stuck or inconsistent flows, jobs, and breakers, and repair them by declared moves.


doctor_router = APIRouter(prefix="/api/doctor", tags=["doctor"])

MOST_SPANS = 50

Span = Annotated[Text, Field(min_length=1, max_length=100)]
Spans = Annotated[
    list[Span] | None,
    Query(
        max_length=MOST_SPANS,
        description="Time after which an entity counts as stuck: SPAN for all states, or STATE=SPAN. Default: 1h.",
    ),
]


class Finding(BaseModel):
    """A problem: what is wrong, since when, why it matters, and its repair. `todo` is a repair for an operator."""

    check: str
    entity: str
    id: str
    says: str
    since: str | None
    matters: str
    fix: str | None
    todo: str | None


class Findings(BaseModel):
    """All problems that were found."""

    findings: list[Finding]


class Repair(Finding):
    """A repair. A failed repair has an error."""

    error: str | None


class Treated(BaseModel):
    """The problems that were found, their repairs, and the remaining problems."""

    found: list[Finding]
    repairs: list[Repair]
    left: list[Finding]


class Fix(Asked):
    """A request to repair problems."""

    model_config = example(stuck_after=["1h", "S_RUNNING=4h"])

    stuck_after: list[Span] = Field(default=[], max_length=MOST_SPANS)


@doctor_router.get("", response_model=Findings, responses=fails())
async def examine(caller: Reads, store: Db, stuck_after: Spans = None) -> Response:
    """Find stuck or inconsistent entities, and show how to repair each. Nothing is changed."""
    found = await runner.examine(store, Limits.said(stuck_after or []), caller.tenant_id)
    return answer({"findings": [finding_json(one) for one in found]})


@doctor_router.post("/fix", response_model=Treated, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def fix(caller: Administers, does: Does, asked: Annotated[Fix | None, Body()] = None) -> Response:
    """Repair problems for which a declared move exists, each in its own transaction."""
    how = asked or Fix()
    limits = Limits.said(how.stuck_after)

    async def work(store: Store) -> dict[str, Any]:
        return runner.as_json(await runner.treat(store, limits, caller.tenant_id))

    return await does.at_length(how, work)


# The route of overrides: an administrator's correction of a state that no move can repair.
#
# Every history marks an override as such.


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

"""Routes of the doctor: find stuck or inconsistent flows, jobs, and breakers, and repair them by declared moves."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.diagnostics.doctor import runner
from keptwork.diagnostics.doctor.finding import as_json as finding_json
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.http.auth import Administers, Reads
from keptwork.http.dependencies import Db, Text, answer, fails
from keptwork.http.idempotency import Asked, Does, example
from keptwork.store import Store

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

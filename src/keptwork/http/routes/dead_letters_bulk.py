"""Routes that cancel or rerun many jobs, by IDs or by a filter, or only count them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import LONGEST_KEY, LONGEST_NAME
from keptwork.http import problems
from keptwork.http.auth import AddsMany, Writes
from keptwork.http.dependencies import Text, fails
from keptwork.http.idempotency import Asked, Does, example
from keptwork.jobs import commands_bulk
from keptwork.jobs import queries as service
from keptwork.store import JobFilter, Store

bulk_router = APIRouter(prefix="/api/jobs", tags=["jobs"])


class Filter(BaseModel):
    """A filter of jobs. A field that is null does not filter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    state: list[str] | None = Field(default=None, max_length=len(JOB.states))
    queue: Text | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    kind: Text | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    correlation_id: Text | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)


class Many(Asked):
    """A selection of jobs, by IDs or by a filter."""

    ids: list[str] | None = Field(default=None, min_length=1, max_length=commands_bulk.MOST_AT_ONCE)
    filter: Filter | None = None
    limit: int = Field(
        default=commands_bulk.MOST_AT_ONCE,
        ge=1,
        le=commands_bulk.MOST_AT_ONCE,
        description="Maximum number of jobs, oldest first.",
    )
    dry_run: bool = Field(default=False, description="Only count the jobs; change nothing.")


class CancelMany(Many):
    """The jobs to cancel, and how."""

    model_config = example(filter={"queue": "mail", "state": ["queued"]}, reason="no longer wanted", dry_run=True)

    hard: bool = False
    reason: Text | None = Field(default=None, max_length=1_000)


class RetryMany(Many):
    """The jobs to rerun."""

    model_config = example(filter={"kind": "fetch", "state": ["failed"]}, limit=100)

    again: bool = False


class Bulk(BaseModel):
    """The number of selected jobs, the outcome of each, and the rejections with reasons. `more`: the filter matches
    further jobs."""

    count: int
    done: dict[str, str]
    refused: dict[str, dict[str, Any]]
    more: bool
    dry_run: bool


@bulk_router.post("/cancel", response_model=Bulk, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def cancel_many(asked: CancelMany, caller: Writes, does: Does) -> Response:
    """Cancel many jobs, by IDs or by a filter."""

    async def work(store: Store) -> dict[str, Any]:
        which = await _chosen(store, caller.tenant_id, asked)
        if asked.dry_run:
            return _counted(which)
        return _many(
            await commands_bulk.cancel_many(store, which, hard=asked.hard, reason=asked.reason, actor=caller.actor),
            len(which.ids),
        )

    return await does(asked, work)


@bulk_router.post("/retry", response_model=Bulk, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def retry_many(asked: RetryMany, caller: AddsMany, does: Does) -> Response:
    """Rerun many jobs as new jobs, by IDs or by a filter."""

    async def work(store: Store) -> dict[str, Any]:
        which = await _chosen(store, caller.tenant_id, asked)
        if asked.dry_run:
            return _counted(which)
        return _many(
            await commands_bulk.retry_many(store, which, again=asked.again, actor=caller.actor), len(which.ids)
        )

    return await does(asked, work)


async def _chosen(store: Store, tenant_id: int, asked: Many) -> commands_bulk.Chosen:
    wanted = None
    if asked.filter is not None:
        by = asked.filter
        wanted = JobFilter(tenant_id, service.states_named(by.state or []), by.queue, by.kind, by.correlation_id)
    return await commands_bulk.chosen(store, tenant_id, asked.ids, wanted, asked.limit)


def _counted(which: commands_bulk.Chosen) -> dict[str, Any]:
    return {"count": len(which.ids), "done": {}, "refused": {}, "more": which.more, "dry_run": True}


def _many(what: commands_bulk.Bulk, count: int) -> dict[str, Any]:
    refused = {id: problems.document(error) for id, error in what.refused.items()}
    return {"count": count, "done": what.done, "refused": refused, "more": what.more, "dry_run": False}

"""Cancel or rerun many jobs with one call, named by ID or found by a filter, up to a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput, KeptworkError
from keptwork.jobs import queries
from keptwork.store import JobFilter, Store
from keptwork.store.acknowledged import acknowledged

MOST_AT_ONCE = 1_000

Each = Callable[[str], Awaitable[str]]


class Bulk(NamedTuple):
    """Outcomes by job ID, refusals by job ID, and whether the filter finds more jobs."""

    done: dict[str, str]
    refused: dict[str, KeptworkError]
    more: bool


@acknowledged
async def cancel_many(
    store: Store, chosen: Chosen, *, hard: bool = False, reason: str | None = None, actor: str | None = None
) -> Bulk:
    """Cancel each job. A running job receives a cancellation request, unless `hard` is set."""

    async def one(id: str) -> str:
        return (await queries.cancel(store, chosen.tenant_id, id, hard=hard, reason=reason, actor=actor)).replace(
            " ", "_"
        )

    return await _each(chosen, one)


@acknowledged
async def retry_many(store: Store, chosen: Chosen, *, again: bool = False, actor: str | None = None) -> Bulk:
    """Rerun each job, and return the ID of its new job as the outcome."""

    async def one(id: str) -> str:
        return public_id(JOB.name, await queries.retry(store, chosen.tenant_id, id, again=again, actor=actor))

    return await _each(chosen, one)


class Chosen(NamedTuple):
    """Jobs of a tenant, and whether there are more."""

    tenant_id: int
    ids: Sequence[str]
    more: bool


async def chosen(
    store: Store, tenant_id: int, ids: Sequence[str] | None, wanted: JobFilter | None, limit: int = MOST_AT_ONCE
) -> Chosen:
    """Return the named jobs, or the oldest that a filter finds. Raise `BadInput` for both or neither."""
    if (ids is None) == (wanted is None):
        raise BadInput(what="say which: ids or filter, and not both")
    if ids is not None:
        return Chosen(tenant_id, list(dict.fromkeys(ids)), False)
    assert wanted is not None  # noqa: S101 - one of the two is there
    found = await queries.page(store, wanted, limit=limit, newest_first=False)
    return Chosen(tenant_id, [public_id(JOB.name, row["id"]) for row in found.jobs], found.next is not None)


async def _each(chosen: Chosen, one: Each) -> Bulk:
    """Change one job after the other. A refusal does not affect the other jobs."""
    done: dict[str, str] = {}
    refused: dict[str, KeptworkError] = {}
    for id in chosen.ids:
        try:
            done[id] = await one(id)
        except KeptworkError as error:
            if error.status >= 500:
                raise
            refused[id] = error
    return Bulk(done, refused, chosen.more)

"""The page of dead letters: by kind and reason, with redrives of one or many."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from keptwork.core.guards import DEAD_LETTER_REASONS
from keptwork.core.validation import OWN_KINDS
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.dashboard.pages.jobs import AT_ONCE, Chosen, Sought, given
from keptwork.http.auth import Principal, Reads, may
from keptwork.http.dependencies import After, Db, WholeDb
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.dead_letters import LIST as DEAD_LETTER_LIST
from keptwork.jobs import dead_letters as service
from keptwork.jobs.commands_bulk import MOST_AT_ONCE
from keptwork.observability import stats
from keptwork.store import JobFilter, Store

dead_letters_router = pages("/dead-letters")

MOST_GROUPS = 12


@dead_letters_router.get("")
async def list_dead_letters(
    request: Request,
    caller: Reads,
    store: Db,
    whole: WholeDb,
    queue: Chosen = "",
    kind: Chosen = "",
    reason_code: Chosen = "",
    text: Sought = "",
    after: After = None,
) -> Response:
    """List the dead letters of the tenant, newest first."""
    chosen = given(queue=queue, kind=kind, reason_code=reason_code)
    wanted = service.among(caller.tenant_id, queue=queue or None, kind=kind or None, reason_code=reason_code or None)
    page = await service.page(store, wanted, after=opened(DEAD_LETTER_LIST, after), limit=AT_ONCE, text=text or None)
    later = await service.later_jobs(store, caller.tenant_id, page.jobs)
    groups = await _groups(store, caller, whole)
    occurring = {one["reason"] for one in groups} | {reason_code}
    return render(
        request,
        caller,
        "dead_letters.html",
        live=EVERY_2_SECONDS,
        letters=[_dead_letter_told(row, later[row["id"]]) for row in page.jobs],
        next=sealed(DEAD_LETTER_LIST, page.next),
        after=after,
        query={**chosen, **given(text=text)},
        chosen=chosen,
        reasons=[("all", ""), *((code.replace("_", " "), code) for code in DEAD_LETTER_REASONS if code in occurring)],
        groups=groups[:MOST_GROUPS],
        again=0 if text else await _to_run_again(store, caller, wanted),
        most=MOST_AT_ONCE,
    )


def _dead_letter_told(row: dict[str, Any], later: list[int]) -> dict[str, Any]:
    """Return a dead letter, and whether its kind is internal. The page of an internal job shows its step."""
    return {**service.as_json(row, later), "own": row["kind"].startswith(OWN_KINDS)}


async def _groups(store: Store, caller: Principal, whole: Store) -> list[dict[str, Any]]:
    """Return the number of dead letters by kind and reason, most frequent first."""
    found = stats.as_json(await stats.current(store, caller.tenant_id, whole))["dead_letters"]
    told = [{**one, "known": one["reason"] in DEAD_LETTER_REASONS} for one in found]
    return sorted(told, key=lambda one: -one["count"])


async def _to_run_again(store: Store, caller: Principal, wanted: JobFilter) -> int:
    """Return how many dead letters were not yet rerun, up to the maximum of one redrive."""
    return await service.count(store, wanted, limit=MOST_AT_ONCE) if may(caller, "write") else 0

"""Pages of workers: hosts, jobs, last heartbeats, and commands."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from keptwork.core.ids import states_named
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render, stream
from keptwork.dashboard.pages.jobs import AT_ONCE, MOST_SHOWN, Chosen, given
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, opened, sealed
from keptwork.http.routes.events import shown
from keptwork.http.routes.jobs import job
from keptwork.http.routes.supervision import worker
from keptwork.jobs.queries import lately
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.contract.workers import ALIVE
from keptwork.workers import commands as service

router = pages("/workers")

LIST, EVERY = "workers", "all"
STATES = (("alive", ""), *((state.name.lower(), state.name) for state in WORKER.states), ("all", EVERY))


@router.get("")
async def listing(
    request: Request, caller: Reads, store: Db, state: Chosen = "", host: Chosen = "", after: After = None
) -> Response:
    """List the workers of the tenant, newest first. The default is those that have not ended."""
    named = None if state == EVERY else states_named(WORKER, [state]) if state else ALIVE
    wanted = WorkerFilter(caller.tenant_id, named, host or None)
    page = await service.page(store, wanted, after=opened(LIST, after), limit=AT_ONCE)
    now = await store.now()
    return render(
        request,
        caller,
        "workers.html",
        live=EVERY_2_SECONDS,
        workers=[{**_told(row, now), "jobs_held": page.jobs[row["id"]]} for row in page.workers],
        next=sealed(LIST, page.next),
        after=after,
        query=given(state=state, host=host),
        states=STATES,
    )


@router.get("/{id}")
async def show(request: Request, id: str, caller: Reads, store: Db) -> Response:
    """Show one worker with all of its details."""
    story, now = await service.show(store, caller.tenant_id, id), await store.now()
    told = _told(story.worker, now)
    own = [row for row in story.jobs if row["tenant_id"] == caller.tenant_id]
    return render(
        request,
        caller,
        "worker.html",
        live=stream(id=told["id"]),
        worker=told,
        allowed=WORKER.allowed_from(told["state"]),
        ends_softly=service.ends_softly(story.worker),
        doing=story.doing,
        settled=_settled(story.doing),
        jobs=[{**job(row), "lately": lately(row, now)} for row in own[:MOST_SHOWN]],
        events=[shown(event) for event in story.events[: -MOST_SHOWN - 1 : -1]],
    )


def _told(row: service.Row, now: int) -> dict[str, Any]:
    """Return a worker, whether it has not ended, and whether its heartbeat is overdue."""
    alive = row["state"] in ALIVE
    late = alive and service.is_silent(row, now)
    return {**worker(row), "alive": alive, "late": late}


def _settled(doing: Any) -> dict[str, int]:
    """Return the outcomes of its jobs by move, if it reported them.

    Workers in other languages can report anything, so unknown data is ignored.
    """
    said = doing.get("outcomes") if isinstance(doing, dict) else None
    counts = said.items() if isinstance(said, dict) else ()
    return {move: count for move, count in counts if move in JOB.triggers and type(count) is int}

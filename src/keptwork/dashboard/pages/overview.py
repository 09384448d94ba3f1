"""The overview page: open problems, queues, running jobs, and throughput."""

from __future__ import annotations

from fastapi import Request
from starlette.background import BackgroundTask
from starlette.responses import Response

from keptwork.core import render as text
from keptwork.core.lifecycles import LIFECYCLES, Lifecycle
from keptwork.core.lifecycles.job import QUEUED, RUNNING
from keptwork.dashboard import charts
from keptwork.dashboard.page import EVERY_2_SECONDS, ROOT, pages, render
from keptwork.diagnostics import overview as service
from keptwork.errors import NotFound
from keptwork.http.auth import Reads
from keptwork.http.dependencies import Db, WholeDb
from keptwork.jobs import limits
from keptwork.observability import stats
from keptwork.observability.stats import PAGE, Readout

router = pages()

COUNTED_AT_ONCE = 1_000
"""Maximum number of new events that are counted before the page is rendered. The others are counted afterward."""

MOST_KINDS = 50
MOST_RUNNING = 10

JOBS = {name: f"{ROOT}/jobs?state={state.name}" for name, state in (("running", RUNNING), ("queued", QUEUED))}
"""The lists of running and of queued jobs."""

WHERE = {
    "approvals": (f"{ROOT}/approvals", "asks"),
    "failed_flows": (f"{ROOT}/flows?kind=workstream&state=failed", "bad"),
    "dead_letters": (f"{ROOT}/dead-letters", "bad"),
    "open_breakers": (f"{ROOT}/breakers", "bad"),
    "held_jobs": (JOBS["queued"], "asks"),
    "paused_queues": ("#queues", "asks"),
    "silent_workers": (f"{ROOT}/workers", "bad"),
}
"""The link and the color of each kind of problem."""


@router.get("/")
async def overview(request: Request, caller: Reads, store: Db, whole: WholeDb) -> Response:
    """Show the state of the tenant."""
    behind = await stats.roll_up(whole, page=COUNTED_AT_ONCE, most=COUNTED_AT_ONCE) == COUNTED_AT_ONCE
    found = await service.read(store, caller.tenant_id)
    kinds = stats.kinds(Readout.of(await store.counters(caller.tenant_id)))
    page = render(
        request,
        caller,
        "overview.html",
        live=EVERY_2_SECONDS,
        found=found,
        most=service.MOST_COUNTED,
        where=WHERE,
        jobs=JOBS,
        queued=limits.queued,
        at_work=limits.at_work,
        running=[service.job_json(job) for job in found.jobs[:MOST_RUNNING]],
        kinds=sorted(kinds, key=lambda kind: -kind.ended)[:MOST_KINDS],
        behind=behind,
        chart=charts.minutes(found.throughput.minutes),
        charted=charts.span(found.throughput.minutes),
        peak=charts.peak(found.throughput.minutes),
    )
    if behind:
        page.background = BackgroundTask(stats.roll_up, whole, most=PAGE)
    return page


# Pages of the declared lifecycles: their states and moves.


lifecycles_router = pages("/lifecycles")

NOWHERE = ""
"""The source of moves that create an entity."""


@lifecycles_router.get("")
async def listing(request: Request, caller: Reads) -> Response:
    """List all lifecycles."""
    return render(request, caller, "lifecycles.html", lifecycles=list(LIFECYCLES.values()))


@lifecycles_router.get("/{name}")
async def show(name: str, request: Request, caller: Reads) -> Response:
    """Show one lifecycle: its states, the triggers between them, and every move."""
    if name not in LIFECYCLES:
        raise NotFound(what="lifecycle", id=repr(name), listing="keptwork lifecycles list")
    found = LIFECYCLES[name]
    rows = [(row, text.condition(row.move), text.destination(row.move)) for row in text.rows(found)]
    return render(request, caller, "lifecycle.html", lifecycle=found, ways=ways(found), moves=rows)


def ways(lifecycle: Lifecycle) -> list[tuple[str, list[list[str]]]]:
    """Return the triggers from each state, and first from nowhere, to each state."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in text.rows(lifecycle):
        found.setdefault((row.source or NOWHERE, row.move.target.name), []).append(row.move.trigger)
    names = [state.name for state in lifecycle.states]
    return [(source, [found.get((source, target), []) for target in names]) for source in (NOWHERE, *names)]

"""The overview page: open problems, queues, running jobs, and throughput."""

from __future__ import annotations

from fastapi import Request
from starlette.background import BackgroundTask
from starlette.responses import Response

from keptwork.core.lifecycles.job import QUEUED, RUNNING
from keptwork.dashboard import charts
from keptwork.dashboard.page import EVERY_2_SECONDS, ROOT, pages, render
from keptwork.diagnostics import overview as service
from keptwork.http.auth import Reads
from keptwork.http.dependencies import Db, WholeDb
from keptwork.jobs import limits_queues
from keptwork.observability import stats
from keptwork.observability.stats_readout import Readout
from keptwork.observability.stats_roll_up import PAGE

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
        queued=limits_queues.queued,
        at_work=limits_queues.at_work,
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

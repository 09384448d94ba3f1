"""The first page: what needs somebody, what waits, what runs, and how fast."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from detent.dashboard.page import EVERY_2_SECONDS, pages, render
from detent.http.auth import Reads
from detent.http.pages import Db, WholeDb
from detent.service import stats

router = pages()


@router.get("/")
async def overview(request: Request, caller: Reads, store: Db, whole: WholeDb) -> Response:
    """How everything stands."""
    figures = stats.as_json(await stats.current(store, caller.tenant_id, whole))
    return render(request, caller, "overview.html", live=EVERY_2_SECONDS, figures=figures)

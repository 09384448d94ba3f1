"""Pages of crews: the list, and one with the tree of its inner crews and shares."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from keptwork.audit import events
from keptwork.core.ids_entities import states_named
from keptwork.core.lifecycles import CREW
from keptwork.crews import commands as service
from keptwork.crews.engine import quotas
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.dashboard.page_looks import states_to_choose
from keptwork.dashboard.pages.agents import State
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.crews import LIST as CREW_LIST
from keptwork.http.routes.events import shown
from keptwork.store import EventFilter

MOST_CREWS = 200
"""Maximum number of crews in the tree. The API returns all of them."""

crews_router = pages("/crews")

Inside = Annotated[bool, Query()]


@crews_router.get("")
async def list_crews(
    request: Request, caller: Reads, store: Db, state: State = "", inside: Inside = False, after: After = None
) -> Response:
    """List crews, newest first, with the quotas of workers."""
    states = states_named(CREW, [state] if state else [])
    page = await service.page(store, caller.tenant_id, states=states, inside=inside, after=opened(CREW_LIST, after))
    return render(
        request,
        caller,
        "crews.html",
        live=EVERY_2_SECONDS,
        crews=[service.as_json(row) for row in page.crews],
        next=sealed(CREW_LIST, page.next),
        state=state,
        states=states_to_choose(CREW),
        inside="true" if inside else "",
        quotas=service.quotas_as_json(await quotas(store, caller.tenant_id)),
    )


@crews_router.get("/{id}")
async def show_crew(request: Request, id: str, caller: Reads, store: Db) -> Response:
    """Show one crew.

    Its shares and inner crews have their own event streams, so the page of an unfinished crew polls.
    """
    crew = service.tree_as_json(await service.tree(store, caller.tenant_id, id))
    over = CREW.state(crew["state"]).final
    tree = list(islice(_flat(crew), MOST_CREWS + 1))
    moves = await events.page(store, EventFilter(caller.tenant_id, CREW.name, service.key_of(id)))
    by_depth = {one["depth"]: one for one in service.quotas_as_json(await quotas(store, caller.tenant_id))}
    return render(
        request,
        caller,
        "crew.html",
        live="" if over else EVERY_2_SECONDS,
        crew=crew,
        over=over,
        tree=tree[:MOST_CREWS],
        cut=len(tree) > MOST_CREWS,
        quota=by_depth.get(crew["depth"]),  # a rejected crew can be deeper than the maximum
        events=[shown(event) for event in moves.events],
    )


def _flat(crew: service.Row, level: int = 0) -> Iterator[tuple[int, service.Row]]:
    """Yield a crew and its inner crews with their depth, parents first."""
    yield level, crew
    for one in crew["inside"]:
        yield from _flat(one, level + 1)

"""The second lock: on PostgreSQL a route that forgets whose rows it asks for shows nothing foreign all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.responses import Response

from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput, SeesNoRows
from keptwork.http import app as application
from keptwork.http.auth import Reads, Writes, narrows
from keptwork.http.dependencies import Db, answer
from keptwork.http.idempotency import Asked, Does
from keptwork.http.rate_limit import Limits
from keptwork.http.routes import ROUTERS
from keptwork.store import EventFilter, JobFilter, Store, open_store
from tests.http.conftest import THEIRS, Keys, Running, serving, two_tenants
from tests.http.test_jobs import enqueued
from tests.support.postgres_server import PostgresServer

careless = APIRouter()


@careless.get("/careless/rows")
async def rows(caller: Reads, store: Db) -> Response:
    """Whose jobs and events there are, without asking for those of the caller."""
    jobs = await store.jobs(JobFilter(), limit=1000)
    events = await store.events(EventFilter(), limit=1000)
    return answer(sorted({row["tenant_id"] for row in jobs} | {event.tenant_id for event in events}))


@careless.get("/careless/jobs/{key}")
async def one(key: int, caller: Reads, store: Db) -> Response:
    """A job by its key alone."""
    return answer(len(await store.rows(JOB, [key])))


@careless.post("/careless/count")
async def count(caller: Writes, does: Does) -> Response:
    """The same inside a change."""

    async def work(store: Store) -> dict[str, Any]:
        return {"tenants": sorted({row["tenant_id"] for row in await store.jobs(limit=1000)})}

    return await does(Asked(request_id="once"), work)


@pytest.fixture(scope="module", params=["auto", "off"])
def careless_server(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, migrated_template: str
) -> Iterator[Running]:
    """A server whose routes forget the tenant: with the second lock, and a twin without."""
    url = postgres_server.create_database(template=migrated_template)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "ROUTES", tuple(application.named([*ROUTERS, careless])))
        with serving(url, Keys(), Limits(row_security=request.param)) as started:
            two_tenants(started)
            yield started
    postgres_server.drop_database(url)


def foreign_rows_shown(running: Running) -> list[bool]:
    """By a list, by a key, and inside a change: whether something foreign is seen."""
    theirs = running.keys.known[THEIRS].tenant_id
    with running.client() as client, running.client(THEIRS) as other:
        made = enqueued(client)
        enqueued(other)
        (row,) = running.do(lambda store: store.jobs(JobFilter(running.ours), limit=1))
        shown = other.get("/careless/rows").json()
        inside = other.post("/careless/count").json()["tenants"]
        assert theirs in shown
        assert theirs in inside
        assert client.get(f"/careless/jobs/{row['id']}").json() == 1
        assert made["state"] == "queued"
        return [shown != [theirs], other.get(f"/careless/jobs/{row['id']}").json() != 0, inside != [theirs]]


def test_a_route_that_forgets_the_tenant_leaks_nothing_and_does_without_the_second_lock(
    careless_server: Running,
) -> None:
    locked = careless_server.app.state.limits.row_security == "auto"
    assert foreign_rows_shown(careless_server) == [not locked] * 3


async def test_a_server_whose_role_may_not_be_narrowed_says_so_or_refuses(
    postgres_server: PostgresServer, migrated_template: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres_server.create_database(template=migrated_template)
    postgres_server.superuser_sql("REVOKE SELECT ON jobs FROM keptwork_app", url.rpartition("/")[2])
    store = await open_store(url)
    try:
        with caplog.at_level(logging.WARNING):
            assert not await narrows(store, "auto")
        assert "keptwork_app may not read jobs" in caplog.text
        with pytest.raises(BadInput, match="keptwork_app may not read jobs"):
            await narrows(store, "require")
        assert not await narrows(store, "off")
    finally:
        await store.close()
        postgres_server.drop_database(url)


def test_streams_and_figures_work_behind_the_second_lock(running: Running) -> None:
    assert running.app.state.narrows
    with running.client() as client:
        enqueued(client)
        first = client.get("/api/events").json()["events"][0]["cursor"]
        enqueued(client)
        with client.stream("GET", "/api/events/stream", params={"after": first}) as stream:
            assert any("job_enqueued" in line for line in stream.iter_lines())
        assert "keptwork_" in client.get("/metrics").text
        assert httpx.get(f"{running.address}/readyz").status_code == 200


def test_a_server_whose_login_sees_no_rows_is_not_ready_and_says_why(
    postgres_server: PostgresServer, migrated_template: str
) -> None:
    url = postgres_server.create_database(template=migrated_template)
    with serving(url, Keys()) as running:
        postgres_server.superuser_sql("DROP POLICY engine ON jobs", url.rpartition("/")[2])
        answer = httpx.get(f"{running.address}/readyz")
        assert (answer.status_code, answer.json()["type"]) == (503, SeesNoRows.problem())
        assert "This login sees no rows" in answer.json()["detail"]
    postgres_server.drop_database(url)

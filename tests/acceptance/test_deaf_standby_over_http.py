"""A client gives up on a request while its commit waits for a deaf standby, and sends it again.

Two servers share the database. The commits of one wait for no standby: it took the first request. The other one answers
the repeated request only when a standby has what it reports, with and without an idempotency key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import httpx
import pytest

from keptwork.http.app import ROUTES
from keptwork.store.postgres.batches_keys import KeyPages
from keptwork.store.postgres.store import PostgresStore
from tests.acceptance.repeated_requests import REQUESTS, WITHOUT_DATABASE, Scene, Sent
from tests.http.admin import ADMIN, admin
from tests.http.conftest import Keys, Running, serving, two_tenants
from tests.support import postgres_server
from tests.support.deaf_standby import Primary, local, primary
from tests.support.postgres_server import PostgresServer
from tests.support.second_server import standby

PATIENCE = 60

BY_RECORD_ALONE = (
    "POST /api/jobs/{id}/cancel",
    "POST /api/jobs/{id}/retry",
    "POST /api/overrides",
    "POST /api/templates",
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of this module's own: whether commits wait concerns all of its databases."""
    with postgres_server.start(settings={"autovacuum": "off"}) as started:
        yield started


@pytest.fixture(scope="module")
def servers(server: PostgresServer) -> Iterator[tuple[Running, Running]]:
    """One whose commits are on the primary alone, and one whose commits wait."""
    url, keys = server.create_database(), Keys()
    with serving(local(url), keys) as impatient, serving(url, keys) as careful:
        careful.app.state.store._keys = in_stock()
        yield impatient, replace(careful, url=url)


def in_stock() -> KeyPages:
    """Keys that the database need not be asked for: a sequence writes to the log now and then."""
    keys = KeyPages()
    keys._offsets, keys._since = list(range(1 << 27, (1 << 27) + 10_000)), float("inf")
    return keys


@pytest.fixture
async def deaf(server: PostgresServer, servers: tuple[Running, Running]) -> AsyncIterator[Primary]:
    two_tenants(servers[0])
    async with primary(server, servers[1].url) as found:
        await found.deafen()
        yield found


async def repeated(
    name: str, headers: dict[str, str], deaf: Primary, impatient: Running, careful: Running
) -> tuple[bool, httpx.Response]:
    """Send a request to the one server, and again to the other; return whether the second answer waited, and it."""
    method = name.partition(" ")[0]
    with admin(impatient) as client:
        sent = REQUESTS[name](Scene(client, impatient))
        first = client.request(method, sent.path, json=sent.body, headers=headers)
        assert first.is_success, first.text
    return await _again(method, sent, headers, deaf, careful)


async def _again(
    method: str, sent: Sent, headers: dict[str, str], deaf: Primary, careful: Running
) -> tuple[bool, httpx.Response]:
    headers = {**headers, "Authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(base_url=careful.address, headers=headers, timeout=PATIENCE) as client:
        answer = asyncio.ensure_future(client.request(method, sent.path, json=sent.body))
        held = await deaf.holds_back(answer)
        await deaf.hear()
        return held, await answer


ALL = [
    *(pytest.param(name, False, id=name) for name in REQUESTS),
    *(
        pytest.param(name, True, id=f"{name} keyed", marks=() if name in BY_RECORD_ALONE else pytest.mark.chaos)
        for name in REQUESTS
    ),
]


@pytest.mark.parametrize(("name", "keyed"), ALL)
async def test_repeated_request_is_answered_only_when_a_standby_has_what_it_reports(
    name: str, keyed: bool, deaf: Primary, servers: tuple[Running, Running]
) -> None:
    headers = {"Idempotency-Key": "request-1"} if keyed and "claim" not in name else {}
    held, answer = await repeated(name, headers, deaf, *servers)
    assert held
    assert answer.status_code < 500
    assert (answer.headers.get("Idempotency-Replayed") == "true") is bool(headers)


@pytest.mark.parametrize("name", BY_RECORD_ALONE)
async def test_twin_without_the_record_is_caught(
    name: str, deaf: Primary, servers: tuple[Running, Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(PostgresStore, "confirm", nothing)
    held = []
    for _ in range(3):
        two_tenants(servers[0])
        await deaf.deafen()
        held.append((await repeated(name, {}, deaf, *servers))[0])
    assert not all(held)  # a page that the server tidies up on the way is written to the log, and waits once


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_every_repeated_request_waits_for_a_standby_that_stopped_receiving() -> None:
    with postgres_server.start(settings={"autovacuum": "off"}) as first, standby(first) as second:
        url, keys, answered = first.create_database(), Keys(), []
        with serving(local(url), keys) as impatient, serving(url, keys) as careful:
            careful.app.state.store._keys = in_stock()
            async with primary(first, url, second) as deaf:
                for name in REQUESTS:
                    two_tenants(impatient)
                    await deaf.deafen()
                    held, _ = await repeated(name, {}, deaf, impatient, careful)
                    answered += [] if held else [name]
    print(f"\n{len(REQUESTS)} requests were repeated, {len(answered)} answered without the standby")
    assert answered == []


async def test_get_is_answered_without_a_standby(deaf: Primary, servers: tuple[Running, Running]) -> None:
    with admin(servers[0]) as client:
        job = Scene(client, servers[0]).job()
    assert not (await _again("GET", Sent(f"/api/jobs/{job}", {}), {}, deaf, servers[1]))[0]


def test_every_request_that_changes_something_is_among_them() -> None:
    found = {f"{method} {route.path}" for route in ROUTES for method in (route.methods or set()) - {"GET", "HEAD"}}
    assert {name.replace(":path}", "}") for name in found} == REQUESTS.keys() | WITHOUT_DATABASE.keys()

"""Finding the route of an address, and answering at once."""

from __future__ import annotations

import asyncio
import doctest
import re
import socket

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match

from keptwork.http import app
from keptwork.http.app import CHOSEN, ROUTES, Directory
from keptwork.http.server import listening_on
from tests.http.conftest import Running


def test_the_examples_are_true() -> None:
    assert doctest.testmod(app).failed == 0


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{min(route.methods)} {route.path}")
def test_every_route_is_found_by_an_address_of_its_own(route: APIRoute) -> None:
    path = re.sub(r"{(\w+)(:path)?}", "job_17", route.path)
    scope = {"type": "http", "method": min(route.methods or ()), "path": path, "headers": []}
    match, child = Directory(ROUTES).matches(scope)
    assert (match, child[CHOSEN].path) == (Match.FULL, route.path)


def test_an_address_of_no_route_is_found_nowhere_and_a_wrong_method_is_refused(strict: Running) -> None:
    with strict.client() as client:
        for path in ("/api", "/api/", "/api/nothing", "/api/jobs/a/b/c", "/nothing"):
            assert client.get(path).status_code == 404, path
        refused = client.delete("/api/jobs/job_17")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


async def test_what_is_answered_is_sent_at_once() -> None:
    met = asyncio.get_running_loop().create_future()

    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listening_on("127.0.0.1", 0) as listening:
        server = await asyncio.start_server(meet, sock=listening)
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await met != 0
        writer.close()
        server.close()
        await server.wait_closed()

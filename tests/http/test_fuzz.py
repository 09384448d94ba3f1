"""The API under requests made from its own document: the short form, and what the fuzzer must notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from detent.http import app as application
from detent.http.auth import Reads
from detent.http.pages import answer, fails
from tests.http.conftest import THEIRS, Keys, Running, serving, two_tenants
from tests.http.fuzz import Fuzzer

REQUESTS = 250


def test_no_request_made_from_the_document_is_answered_wrongly(running: Running) -> None:
    found = Fuzzer(running.address, THEIRS, 7).ask_all(REQUESTS)
    print(found.told())
    assert found.wrong == {}, found.told()
    assert found.asked >= REQUESTS
    assert {200, 201, 404, 422} <= set(found.statuses)


def test_every_route_of_the_document_is_asked(running: Running) -> None:
    fuzzer = Fuzzer(running.address, THEIRS)
    streams = {"GET /api/events/stream"}
    asked = {operation.label for operation in fuzzer.operations()}
    paths = running.app.openapi()["paths"]
    assert asked | streams == {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


class Shown(BaseModel):
    """What a twin says it answers."""

    number: int


wrong = APIRouter()


@wrong.get("/wrong/breaks", response_model=Shown, responses=fails())
async def breaks(caller: Reads, divisor: int = 1) -> Response:
    """A twin that divides by what it is given, and the like."""
    return answer({"number": 1 // (divisor - divisor)})


@wrong.get("/wrong/shape", response_model=Shown, responses=fails())
async def shape(caller: Reads) -> Response:
    """A twin whose answer is not what it says."""
    return answer({"number": "one"})


@wrong.get("/wrong/status", response_model=Shown, responses=fails())
async def status(caller: Reads) -> Response:
    """A twin with a status that it does not declare."""
    return answer({"number": 1}, 202)


@wrong.get("/wrong/kind", response_model=Shown, responses=fails())
async def kind(caller: Reads) -> Response:
    """A twin that refuses without a problem document."""
    return answer({"detail": "no"}, 422)


@wrong.get("/wrong/open", response_model=Shown, responses=fails(), openapi_extra={"security": [{"HTTPBearer": []}]})
async def open_to_all() -> Response:
    """A twin that says it needs a key, and asks for none."""
    return answer({"number": 1})


@pytest.fixture(scope="module")
def wrong_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "ROUTES", tuple(application.named([wrong])))
        with serving(f"sqlite:///{tmp_path_factory.mktemp('wrong')}/detent.db", Keys()) as started:
            two_tenants(started)
            yield started


def test_routes_that_break_or_lie_are_noticed(wrong_server: Running) -> None:
    found = Fuzzer(wrong_server.address, THEIRS, 7, without_key=0.5).ask_all(100)
    noticed = {where.partition(":")[0].removesuffix(" without a key") for where in found.wrong}
    assert noticed == {f"GET {route.path}" for route in wrong.routes if isinstance(route, APIRoute)}, found.told()

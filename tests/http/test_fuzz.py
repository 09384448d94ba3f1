"""The API under requests made from its own document: the short form, and what the fuzzer must notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.http import app as application
from keptwork.http.auth import Reads
from keptwork.http.dependencies import answer, fails
from keptwork.settings import Config
from tests.http.conftest import THEIRS, Keys, Running, serving, two_tenants
from tests.http.flow_stage import open_breaker
from tests.http.fuzz.fuzzer import TRIES, Fuzzer

REQUESTS = 450
MOST_THAT_NEVER_DID = 4
"""Of all routes; which, is a matter of what the others have done to things before."""


@pytest.fixture
def with_a_tool(running: Running) -> Iterator[None]:
    before = running.app.state.config
    running.app.state.config = Config.model_validate({"tools": {"ruff": {"command": ["ruff"]}}})
    yield
    running.app.state.config = before


@pytest.mark.usefixtures("with_a_tool")
def test_no_request_made_from_the_document_is_answered_wrongly(running: Running) -> None:
    open_breaker(running, tenant_id=running.keys.known[THEIRS].tenant_id)
    found = Fuzzer(running.address, THEIRS, 7).ask_all(REQUESTS)
    print(found.told())
    assert found.wrong == {}, found.told()
    assert found.asked >= REQUESTS
    assert {200, 201, 404, 422} <= set(found.statuses)
    assert not found.not_staged, found.told()
    assert len(found.never_did) <= MOST_THAT_NEVER_DID, found.told()


def test_every_route_of_the_document_is_asked(running: Running) -> None:
    fuzzer = Fuzzer(running.address, THEIRS)
    asked = {operation.label for operation in fuzzer.operations()}
    paths = running.app.openapi()["paths"]
    assert asked == {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


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


class Thing(BaseModel):
    """Something that is made, and then found by its id."""

    id: str


linked = APIRouter()
THING = "thing_0199c82c-0000-7000-8000-00000000002a"


@linked.post("/api/things", status_code=201, response_model=Thing, responses=fails())
async def make_thing(caller: Reads) -> Response:
    """Makes one."""
    return answer({"id": THING}, 201)


@linked.get("/api/things/{id}", response_model=Thing, responses=fails(errors.NotFound))
async def show_thing(id: str, caller: Reads) -> Response:
    """A twin that breaks for things that are there, and for no others."""
    if id == THING:
        raise ZeroDivisionError
    raise errors.NotFound(what="thing", id=id, listing="nowhere")


closed = APIRouter()


@closed.get("/api/things/{id}", response_model=Thing, responses=fails(errors.NotFound))
async def show_nothing(id: str, caller: Reads) -> Response:
    """A twin that has nothing, whatever it is asked for."""
    raise errors.NotFound(what="thing", id=id, listing="nowhere")


@contextmanager
def serving_only(router: APIRouter, folder: Path) -> Iterator[Running]:
    """A server that has these routes and no others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "ROUTES", tuple(application.named([router])))
        with serving(f"sqlite:///{folder}/keptwork.db", Keys()) as started:
            two_tenants(started)
            yield started


@pytest.fixture(scope="module")
def wrong_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_only(wrong, tmp_path_factory.mktemp("wrong")) as started:
        yield started


def test_what_breaks_only_for_things_that_were_made_is_found_by_chains(tmp_path: Path) -> None:
    with serving_only(linked, tmp_path) as started:
        fuzzer = Fuzzer(started.address, THEIRS, 7, without_key=0)
        fuzzer.follow(20)
    assert [where.partition(":")[0] for where in fuzzer.found.wrong] == ["GET /api/things/{id}"]
    assert fuzzer.found.chains > 0


def test_routes_that_break_or_lie_are_noticed(wrong_server: Running) -> None:
    found = Fuzzer(wrong_server.address, THEIRS, 7, without_key=0.5).ask_singly(100)
    noticed = {where.partition(":")[0].removesuffix(" without a key") for where in found.wrong}
    assert noticed == {f"GET {route.path}" for route in wrong.routes if isinstance(route, APIRoute)}, found.told()


def test_a_route_that_never_does_what_it_is_asked_is_named_with_its_refusal(tmp_path: Path) -> None:
    with serving_only(closed, tmp_path) as started:
        found = Fuzzer(started.address, THEIRS, 7, without_key=0).ask_plainly()
    assert (found.never_did, found.wrong) == (["GET /api/things/{id}"], {})
    assert f"GET /api/things/{{id}}: 404 not-found, {TRIES} of {TRIES} times" in found.told()

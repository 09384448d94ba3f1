"""Every problem that the API has of its own is provoked once, on a running server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from keptwork import errors
from keptwork.errors import KeptworkError
from keptwork.http import problems
from keptwork.http.auth import Principal
from keptwork.http.idempotency import fingerprint
from keptwork.http.routes.jobs import Job, NewJob
from tests.http.conftest import NOBODY, OURS, Keys, Running, serving, two_tenants
from tests.http.declared import check_declared, undeclared
from tests.http.flow_stage import SIGNED, TWICE, run
from tests.http.limited import limit
from tests.http.test_jobs import enqueued
from tests.http.wire import exchanged, head


class Trouble(Keys):
    """Keys whose look-up goes wrong for two tokens."""

    async def authenticate(self, token: str) -> Principal | None:
        if token == "kw_down":
            raise errors.Unreachable(url="postgresql://secret.example/db", detail="secret")
        if token == "kw_bug":
            raise RuntimeError("secret")
        return await super().authenticate(token)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose keys can be out of reach."""
    with serving(f"sqlite:///{tmp_path_factory.mktemp('trouble')}/keptwork.db", Trouble()) as started:
        two_tenants(started)
        yield started


def in_flight(running: Running, client: httpx.Client) -> httpx.Response:
    """A request whose first sending is still at work."""
    asked = NewJob(kind="slow")
    running.do(lambda store: store.recall(running.ours, "POST /api/jobs", "slow", fingerprint({}, asked)))
    return client.post("/api/jobs", json={"kind": "slow"}, headers={"Idempotency-Key": "slow"})


def shutting_down(running: Running, client: httpx.Client) -> httpx.Response:
    stopping = running.app.state.stopping
    running.loop.call_soon_threadsafe(stopping.set)
    while not stopping.is_set():
        client.get("/healthz")
    answer = client.get("/readyz")
    running.loop.call_soon_threadsafe(stopping.clear)
    return answer


def cancelled_twice(running: Running, client: httpx.Client) -> httpx.Response:
    id = enqueued(client)["id"]
    client.post(f"/api/jobs/{id}/cancel")
    return client.post(f"/api/jobs/{id}/cancel")


def as_other(token: str | None) -> Callable[[Running, httpx.Client], httpx.Response]:
    def ask(running: Running, client: httpx.Client) -> httpx.Response:
        with running.client(token) as other:
            return other.get("/api/jobs")

    return ask


def posted(content: bytes, kind: str = "application/json") -> Callable[[Running, httpx.Client], httpx.Response]:
    return lambda running, client: client.post("/api/jobs", content=content, headers={"Content-Type": kind})


def started(steps: list[dict[str, Any]]) -> Callable[[Running, httpx.Client], httpx.Response]:
    flow = {"definition": {"name": "f", "steps": steps}}
    return lambda running, client: client.post("/api/workstreams", json=flow)


def answered(flow: dict[str, Any], *answers: dict[str, str]) -> Callable[[Running, httpx.Client], httpx.Response]:
    """A run that is approved and then, if there is another answer, rejected."""

    def ask(running: Running, client: httpx.Client) -> httpx.Response:
        id = run(client, flow)["id"]
        told = [
            client.post(f"/runs/{id}/{deed}", json=how)
            for deed, how in zip(("approve", "reject"), answers, strict=False)
        ]
        return told[-1]

    return ask


def scheduled_twice(running: Running, client: httpx.Client) -> httpx.Response:
    asked = {"name": "s", "kind": "fetch", "every": "1h"}
    return [client.post("/api/schedules", json=asked) for _ in range(2)][1]


def got(path: str) -> Callable[[Running, httpx.Client], httpx.Response]:
    return lambda running, client: client.get(path)


def over(path: str = "/api/queues", **own: int) -> Callable[[Running, httpx.Client], httpx.Response]:
    """A tenant over its limits, once one request was let in or turned away."""

    def ask(running: Running, client: httpx.Client) -> httpx.Response:
        limit(running, **own)
        client.get("/healthz")
        guest = running.app.state.turnstile._guests[running.ours]
        while guest.in_flight:  # a request is counted for a moment longer than its answer takes to arrive
            time.sleep(0.001)
        guest.in_flight = guest.streams = 1
        answer = client.post(path, json={"kind": "a"}) if path == "/api/jobs" else client.get(path)
        limit(running)
        return answer

    return ask


def full(running: Running, client: httpx.Client) -> httpx.Response:
    enqueued(client)
    return over("/api/jobs", max_queued=1)(running, client)


def guessed(running: Running, client: httpx.Client) -> httpx.Response:
    guesses = running.app.state.guesses
    while not guesses._buckets or next(iter(guesses._buckets.values())).level >= 1:
        guesses.wrong("127.0.0.1")
    answer = as_other("kw_guess")(running, client)
    guesses._buckets.clear()
    return answer


PROVOKED: dict[type[KeptworkError], Callable[[Running, httpx.Client], httpx.Response]] = {
    errors.InvalidTransition: cancelled_twice,
    errors.NotFound: got("/api/jobs/none"),
    errors.BadInput: got("/api/jobs?state=happy"),
    errors.RequestInFlight: in_flight,
    errors.Unauthenticated: as_other(None),
    errors.MissingScope: as_other(NOBODY),
    errors.NoSuchRoute: got("/nowhere"),
    errors.WrongMethod: lambda running, client: client.delete("/api/jobs"),
    errors.BodyTooLarge: posted(b" " * 3_000_000),
    errors.WrongContentType: posted(b"{}", "text/plain"),
    errors.NotJson: posted(b"{"),
    errors.TooDeep: posted(b"[" * 100),
    errors.BadCursor: got("/api/jobs?after=AAAAAAAAAAAA"),
    errors.InvalidRequest: posted(b"{}"),
    errors.TooManyRequests: over(requests_per_second=1, burst=1),
    errors.TooManyAtOnce: over(max_in_flight=1),
    errors.TooManyStreams: over("/api/events/stream", max_streams=1),
    errors.TooManyWrongKeys: guessed,
    errors.QueueFull: full,
    errors.BadFlow: started([]),
    errors.ProgramsRefused: started([{"id": "a", "command": ["true"]}]),
    errors.NothingAsked: answered(TWICE, {"gate": "second"}),
    errors.AlreadyDecided: answered(SIGNED, {}, {}),
    errors.ScheduleThere: scheduled_twice,
    errors.ShuttingDown: shutting_down,
    errors.InternalError: as_other("kw_bug"),
    errors.Unreachable: as_other("kw_down"),
}
ON_THE_WIRE: dict[type[KeptworkError], bytes] = {
    errors.TooSlow: b"GET /healthz",
    errors.HeadersTooLarge: head("GET", "/healthz", "X-Long: " + "y" * 5000),
    errors.NotHttp: b"HELO there\r\n\r\n",
}


@pytest.mark.parametrize("error", PROVOKED, ids=lambda error: error.slug())
def test_it_is_told_as_a_problem_of_its_type(troubled: Running, error: type[KeptworkError]) -> None:
    with troubled.client(OURS) as client:
        answer = PROVOKED[error](troubled, client)
    assert (answer.status_code, answer.headers["content-type"]) == (error.status, problems.MEDIA_TYPE)
    told = answer.json()
    assert (told["type"], told["title"], told["status"]) == (error.problem(), error.title(), error.status)
    assert told["detail"]
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("error", ON_THE_WIRE, ids=lambda error: error.slug())
def test_what_never_reaches_the_application_is_told_so_too(strict: Running, error: type[KeptworkError]) -> None:
    status, told = exchanged(strict, ON_THE_WIRE[error])
    assert (status, told["type"]) == (error.status, error.problem())


def test_every_error_of_the_api_is_among_them() -> None:
    declared = [
        found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, KeptworkError)
    ]
    first, last = declared.index(errors.Unauthenticated), declared.index(errors.InternalError)
    assert set(declared[first : last + 1]) <= {*PROVOKED, *ON_THE_WIRE}


def test_no_two_errors_have_one_type() -> None:
    declared = [
        found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, KeptworkError)
    ]
    assert len({found.problem() for found in declared}) == len(declared)


def test_an_answer_with_a_field_too_many_or_too_few_is_noticed() -> None:
    job = dict.fromkeys(Job.model_fields, "x") | dict.fromkeys(
        ("priority", "attempts", "max_attempts", "epoch", "seq"), 1
    )
    assert undeclared(Job, job) == {}
    assert undeclared(Job, {**job, "tenant_id": 1}) == {"tenant_id": 1}
    with pytest.raises(ValidationError):
        undeclared(Job, {name: value for name, value in job.items() if name != "state"})
    request = httpx.Request("GET", "http://server/api/jobs")
    leaky = {"jobs": [{**job, "tenant_id": 1}], "next": None}
    with pytest.raises(AssertionError):
        check_declared(httpx.Response(200, json=leaky, request=request))
    teapot = {"type": "x", "title": "x", "status": 418, "detail": "x"}
    headers = {"Content-Type": problems.MEDIA_TYPE}
    with pytest.raises(AssertionError):
        check_declared(httpx.Response(418, content=json.dumps(teapot), headers=headers, request=request))

"""Definitions of flows that come over HTTP: everything wrong with them at once, and nothing run that nobody allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from keptwork.http import submitted_flows
from tests.http.conftest import OURS, Running
from tests.http.flow_stage import HERE, SIGNED, kept

ASK: dict[str, Any] = {"id": "ask", "approval": {}}


def posted(client: httpx.Client, *steps: dict[str, Any], at: str = "/api/workstreams", **more: Any) -> httpx.Response:
    return client.post(at, json={"definition": {"name": "f", "steps": [*steps], **more}})


def test_everything_wrong_with_a_definition_is_told_at_once_with_its_place(client: httpx.Client) -> None:
    answer = posted(client, {"id": "a", "tool": "x", "timeout": "soon"}, {"id": "b", "toll": "x"}, max_retries="two")
    told = answer.json()
    assert (answer.status_code, told["type"]) == (422, "urn:keptwork:problem:bad-flow")
    places = {one["where"].removeprefix("body.definition.") for one in told["errors"]}
    assert places == {"max_retries", "steps.0.timeout", "steps.1.toll"}
    assert any("did you mean tool?" in one["what"] for one in told["errors"])
    assert client.get("/api/workstreams").json()["workstreams"] == []
    assert client.get("/api/templates").json()["templates"] == []


@pytest.mark.parametrize(
    ("steps", "where", "what"),
    [
        ([{**ASK, "depends_on": ["b"]}], "steps.0.depends_on", "there is no such step"),
        (
            [{**ASK, "depends_on": ["b"]}, {"id": "b", "approval": {}, "depends_on": ["ask"]}],
            "steps.0.depends_on",
            "wait for one another",
        ),
        ([ASK, ASK], "steps.0.id", "each needs an id of its own"),
        ([{"id": "a", "tool": "x", "args": ["${b.stdout}"]}], "steps.0", "there is no such step"),
        ([{"id": "a", "flow": "other.yaml"}], "steps.0.flow", "names a file"),
        ([{"id": "a", "flow": "../../etc/x.yml"}], "steps.0.flow", "names a file"),
        ([], "steps", "at least 1 of them"),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_place(
    client: httpx.Client, steps: list[dict[str, Any]], where: str, what: str
) -> None:
    told = posted(client, *steps).json()
    assert told["status"] == 422
    assert any(one["where"] == f"body.definition.{where}" and what in one["what"] for one in told["errors"]), told


def test_a_thousand_mistakes_are_not_all_told(client: httpx.Client) -> None:
    told = posted(client, *({"id": f"s{number}", "toll": "x"} for number in range(1_000))).json()
    assert len(told["errors"]) == 20
    assert len(told["detail"]) < 200


PROGRAMS: list[dict[str, Any]] = [
    {"id": "p", "command": ["sh", "-c", "id"]},
    {"id": "p", "call": "os:system", "with": {"command": "id"}},
    {"id": "p", "tool": "ruff", "env": {"PATH": "/tmp"}},  # noqa: S108 - nothing is written there
    {"id": "p", "tool": "ruff", "cwd": "/"},
    {"id": "p", "crew": {"task": "t", "call": "os:system"}},
]


@contextmanager
def taking_programs(running: Running, taken: bool) -> Iterator[None]:
    """As `keptwork serve --programs` would have it."""
    before = running.app.state.limits
    running.app.state.limits = replace(before, programs=taken)
    try:
        yield
    finally:
        running.app.state.limits = before


@pytest.mark.parametrize("at", ["/api/workstreams", "/runs", "/api/templates"])
@pytest.mark.parametrize(
    ("taken", "scope", "status"),
    [(False, "write", 403), (False, "admin", 403), (True, "write", 403), (True, "admin", 201)],
)
def test_a_step_that_says_what_is_run_is_taken_from_nobody_unless_the_server_is_told_to(
    client: httpx.Client, running: Running, at: str, taken: bool, scope: str, status: int
) -> None:
    running.keys.known[OURS] = running.keys.known[OURS]._replace(scopes=frozenset({"read", scope}))
    with taking_programs(running, taken):
        answers = [posted(client, step, at=at) for step in PROGRAMS]
    assert [one.status_code for one in answers] == [status] * len(PROGRAMS)
    for refused in answers if status == 403 else []:
        assert refused.json()["type"] == "urn:keptwork:problem:programs-refused"
        assert "The step p says what is to be run" in refused.json()["detail"]
    assert bool(client.get(at).json()[at.rpartition("/")[2]]) == (status == 201)


def test_a_server_that_lets_programs_pass_is_noticed(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitted_flows, "programs", lambda flow: [])  # a twin that finds none
    assert [posted(client, step).status_code for step in PROGRAMS] == [201] * len(PROGRAMS)


def test_a_definition_is_checked_and_nothing_is_kept_of_it(client: httpx.Client) -> None:
    steps: list[dict[str, Any]] = [ASK, {"id": "run", "command": ["true"], "depends_on": ["ask"]}]
    answer = posted(client, *steps, at="/api/flows/check")
    assert answer.json() == {"name": "f", "kind": "workstream", "levels": [["ask"], ["run"]], "programs": ["run"]}
    assert posted(client, ASK, ASK, at="/api/flows/check").status_code == 422
    assert client.get("/api/templates").json()["templates"] == []
    schema = client.get("/api/flows/schema").json()
    assert schema["title"] == "Keptwork flow"
    assert "Step" in schema["$defs"]


def test_steps_that_name_tools_models_people_and_templates_are_taken(client: httpx.Client) -> None:
    steps: list[dict[str, Any]] = [
        {"id": "lint", "tool": "ruff", "args": ["check"], "stdin": "x"},
        {"id": "think", "agent": "Summarise ${lint.stdout}", "depends_on": ["lint"]},
        {"id": "share", "crew": {"task": "t", "workers": 2}, "depends_on": ["lint"]},
        {"id": "inner", "flow": "other", "depends_on": ["lint"]},
        {"id": "sign", "approval": {"by": "ops"}, "depends_on": ["lint"]},
    ]
    assert posted(client, *steps).status_code == 201


def test_a_template_that_an_operator_kept_is_started_with_the_right_to_write(
    client: httpx.Client, running: Running
) -> None:
    kept(running, {"name": "trusted", "steps": [{"id": "a", "call": f"{HERE}:build", "with": {"version": "1"}}]})
    assert client.post("/api/workstreams", json={"template": "trusted"}).status_code == 201


@pytest.mark.parametrize("kind", ["keptwork.command", "keptwork.share", "keptwork.start"])
def test_a_job_that_carries_out_a_step_cannot_be_put_in_past_its_flow(client: httpx.Client, kind: str) -> None:
    for at, body in [
        ("/api/jobs", {"kind": kind}),
        ("/api/schedules", {"name": "s", "kind": kind, "every": "1h"}),
        ("/api/crews", {"kind": kind, "task_description": "t"}),
    ]:
        answer = client.post(at, json=body)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:keptwork:problem:bad-input"), at


def test_a_step_whose_job_is_run_again_with_other_arguments_is_refused(client: httpx.Client, running: Running) -> None:
    from keptwork.store import NewJob

    (key,) = running.do(lambda store: store.enqueue([NewJob("keptwork.share", tenant_id=running.ours)]))
    id = client.get("/api/jobs").json()["jobs"][0]["id"]
    assert key
    client.post(f"/api/jobs/{id}/cancel")
    answer = client.post(f"/api/jobs/{id}/retry", json={"payload": {"call": "os:system"}})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:keptwork:problem:bad-input")


@pytest.mark.parametrize("text", ["\0", "\ud800"])
def test_text_that_no_database_keeps_is_refused_wherever_it_stands(client: httpx.Client, text: str) -> None:
    question = {"name": "f", "steps": [{"id": "a", "approval": {"question": f"go{text}?"}}]}
    open_input = {"name": "f", "inputs": {"x": {}}, "steps": [{"id": "a", "approval": {"question": "${inputs.x}"}}]}
    for body in (
        {"definition": question},
        {"definition": open_input, "inputs": {"x": text}},
        {"definition": SIGNED, "key": f"k{text}"},
    ):
        assert sent(client, json.dumps(body)).status_code == 422, body


def sent(client: httpx.Client, body: str) -> httpx.Response:
    """As it is, where a library would not send it."""
    return client.post("/api/runs", content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_refused(client: httpx.Client, number: str) -> None:
    flow = {"name": "f", "inputs": {"x": {"type": "number", "default": 7.5}}, "steps": [ASK]}
    body = json.dumps({"definition": flow})
    assert sent(client, body).status_code == 201
    assert sent(client, body.replace("7.5", number)).status_code == 422


def test_inputs_are_held_against_what_the_flow_asks_for(client: httpx.Client) -> None:
    flow = {"name": "f", "inputs": {"n": {"type": "integer", "required": True}}, "steps": [ASK]}
    for inputs in ({}, {"n": "1"}, {"n": 1, "m": 2}):
        assert client.post("/api/runs", json={"definition": flow, "inputs": inputs}).status_code == 422
    assert client.post("/api/runs", json={"definition": flow, "inputs": {"n": 1}}).json()["inputs"] == {"n": 1}

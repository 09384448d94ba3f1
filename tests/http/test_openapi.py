"""The OpenAPI document: every route is described, with an example of what it is given and how it can refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from tests.http.conftest import Running

OPEN = {"/healthz", "/readyz"}


@pytest.fixture(scope="module")
def document(strict_server: Running) -> dict[str, Any]:
    with strict_server.client(None) as client:
        found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            yield path, method, said


def bodies(document: dict[str, Any]) -> set[str]:
    """The names of the models that requests are given as."""
    given = [said["requestBody"] for _, _, said in operations(document) if "requestBody" in said]
    return set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(given)))


def test_every_route_says_what_it_does_what_it_gives_and_how_it_refuses(document: dict[str, Any]) -> None:
    for path, method, said in operations(document):
        assert said["description"].strip(), path
        good = [status for status in said["responses"] if status.startswith("2")]
        assert len(good) == 1, path
        assert said["responses"][good[0]]["content"], path
        if path not in OPEN:
            assert said["security"] == [{"HTTPBearer": []}], path
            for status in ("401", "403", "422"):
                assert "application/problem+json" in said["responses"][status]["content"], (path, method, status)


def test_every_change_takes_an_idempotency_key_in_either_way(document: dict[str, Any]) -> None:
    for path, method, said in operations(document):
        if method != "get":
            assert "Idempotency-Key" in [one["name"] for one in said["parameters"]], path
            assert "requestBody" in said, path
    for name in bodies(document):
        assert "request_id" in document["components"]["schemas"][name]["properties"], name


def test_every_body_has_an_example(document: dict[str, Any]) -> None:
    assert bodies(document)
    for name in bodies(document):
        assert document["components"]["schemas"][name]["examples"], name


def test_every_example_is_what_its_schema_takes(document: dict[str, Any]) -> None:
    for name in bodies(document):
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        for example in document["components"]["schemas"][name]["examples"]:
            jsonschema_rs.validate(schema, example)


def test_an_example_that_lacks_something_is_noticed(document: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/Keep", "components": document["components"]}
    with pytest.raises(jsonschema_rs.ValidationError, match="content"):
        jsonschema_rs.validate(schema, {"worker": "w_1", "epoch": 0})


def test_an_artifact_is_of_whatever_kind_its_handler_said(document: dict[str, Any]) -> None:
    answers = document["paths"]["/api/jobs/{id}/artifacts/{name}"]["get"]["responses"]
    assert list(answers["200"]["content"]) == ["*/*"]


def test_what_a_stream_tells_is_described_as_the_data_of_its_messages(document: dict[str, Any]) -> None:
    answers = document["paths"]["/api/events/stream"]["get"]["responses"]
    sent = answers["200"]["content"]["text/event-stream"]["itemSchema"]
    jsonschema_rs.validate({**sent, "components": document["components"]}, {"id": "1", "event": "e", "data": "{}"})
    assert set(sent["properties"]["data"]["contentSchema"]) == {"$ref"}


def test_nothing_is_referred_to_that_is_not_there(document: dict[str, Any]) -> None:
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert "Problem" in referred
    assert referred <= set(document["components"]["schemas"])


def test_every_operation_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = [said["operationId"] for _, _, said in operations(document)]
    assert "jobs_enqueue" in names
    assert len(set(names)) == len(names)

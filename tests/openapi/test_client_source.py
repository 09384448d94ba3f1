"""The client as it is written from a document: of the API, and of one that has what the API does not have yet."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keptwork.client import unset
from tools import docs
from tools.client import layout, methods, models, spelling
from tools.client.operations import Unsayable, operations

ROOT = Path(__file__).parents[2]


def operation(name: str, method: str = "get", path: str = "/api/things", **more: Any) -> dict[str, Any]:
    answer = {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}}
    said = {"tags": ["odd things"], "operationId": f"odd_things_{name}", "description": "So.", "responses": answer}
    return {path: {method: said | more}}


def document(*found: dict[str, Any], **schemas: Any) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for one in found:
        for path, by_method in one.items():
            paths.setdefault(path, {}).update(by_method)
    thing = {"type": "object", "properties": {"from": {"type": "string"}}, "required": ["from"]}
    return {"paths": paths, "components": {"schemas": {"Thing": thing, **schemas}}}


def body(name: str) -> dict[str, Any]:
    schema = {"anyOf": [{"$ref": f"#/components/schemas/{name}"}, {"type": "null"}]}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def parameter(name: str, place: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string", **schema}}


@pytest.mark.parametrize("module", [layout, spelling, unset])
def test_the_examples_are_true(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def checked(found: dict[str, Any], folder: Path) -> str:
    """The text of its methods; neither the formatter nor the linter has anything to say about any of it."""
    texts = {"models": models.module(found), **methods.modules(found)}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    config = ("--config", str(ROOT / "pyproject.toml"))
    run(sys.executable, "-m", "ruff", "format", "--check", *config, str(folder))
    ours = ("--config", "lint.isort.known-first-party=['keptwork']")  # it is not in its place
    run(sys.executable, "-m", "ruff", "check", *config, *ours, str(folder))
    return texts["odd_things"]


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.acceptance
def test_whatever_a_document_has_becomes_code_that_needs_no_mending(tmp_path: Path) -> None:
    properties = {
        "from": {"type": "string"},
        "id": {"type": "integer"},
        "cap": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 5},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "request_id": {"type": "string"},
    }
    made = document(
        operation("list", parameters=[parameter("after", "query"), parameter("limit", "query", type="integer")]),
        operation(
            "change",
            "put",
            "/api/things/{id}",
            parameters=[parameter("id", "path"), parameter("Idempotency-Key", "header"), parameter("X-Much", "header")],
            **body("Change"),
        ),
        operation("drop", "delete", "/api/things/{id}", parameters=[parameter("id", "path")]),
        operation("keep", path="/api/things/{id}/file", responses={"200": {"content": {"text/plain": {}}}}),
        operation("stream", path="/api/things/stream", responses={"200": {"content": {"text/event-stream": {}}}}),
        Change={"type": "object", "properties": properties, "required": ["from", "id"]},
        Thing={
            "type": "object",
            "description": 'A "thing"',
            "properties": {
                "items": {"type": "array", "items": {"$ref": "#/components/schemas/keptwork__http__routes__odd__Item"}},
                "next": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "shape": {"$ref": "#/components/schemas/Shape"},
                "colour": {"$ref": "#/components/schemas/Colour"},
            },
        },
        Shape={"type": "object", "additionalProperties": True},
        Colour={"enum": ["red"], "type": "string"},
        keptwork__http__routes__odd__Item={"type": "object", "properties": {"from": {"const": "x"}}},
    )
    for one in made["paths"]["/api/things/{id}/file"].values():
        one["parameters"] = [parameter("id", "path")]
    text = checked(made, tmp_path)
    assert "def all(self, *, after: str | None = None, limit: int | None = None)" in text
    assert "-> AsyncGenerator[models.OddItem, None]:" in text
    assert "        id: str,\n        *,\n        from_: str,\n        id_: int,\n" in text
    assert (
        '        cap: int | Unset | None = UNSET,\n        tags: Sequence[Literal["a", "b"]] | None = None,\n' in text
    )
    assert "request_id" not in text
    assert '"from": from_, "id": id_, **given({"tags": tags}, {"cap": cap})' in text
    assert 'self._wire.change(models.Thing, "DELETE", f"/api/things/{segment(id)}", repeatable=False)' in text
    assert "async def keep(self, id: str) -> bytes:" in text
    assert "def follow(self, *, after: str | None = None) -> AsyncGenerator[dict[str, Any], None]:" in text


def test_what_is_there_under_two_addresses_is_one_method() -> None:
    made = document(operation("list"), operation("list", path="/things"))
    assert [one.path for one in operations(made)] == ["/api/things"]


def test_two_operations_of_one_name_are_refused_by_their_addresses() -> None:
    with pytest.raises(Unsayable, match=r"GET /api/others and GET /api/things are both called odd_things_list"):
        operations(document(operation("list"), operation("list", path="/api/others")))


@pytest.mark.parametrize(
    "odd",
    [
        operation("put", "post", requestBody={"content": {"text/plain": {"schema": {}}}}),
        operation("put", "post", responses={"200": {"content": {}}}),
    ],
    ids=["a body that is no model", "an answer that is no JSON"],
)
def test_what_cannot_be_said_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(Unsayable):
        methods.modules(document(odd))


def test_a_client_that_is_not_what_the_routes_are_is_named(tmp_path: Path) -> None:
    pages, client = tmp_path / "docs", tmp_path / docs.CLIENT
    pages.mkdir()
    client.mkdir(parents=True)
    docs.write(pages)
    assert docs.stale(pages) == []
    (client / "api" / "why.py").unlink()
    (client / "api" / "gone.py").write_text(f"{docs.MODULE_MARK}\n", "utf-8")
    (client / "by_hand.py").write_text("", "utf-8")
    jobs = client / "api" / "jobs.py"
    jobs.write_text(jobs.read_text("utf-8").replace("max_attempts", "attempts"), "utf-8")
    assert docs.stale(pages) == [
        f"{jobs} is out of date",
        f"{client}/api/why.py is missing",
        f"{client}/api/gone.py is no longer generated",
    ]
    docs.write(pages)
    assert docs.stale(pages) == []
    assert (client / "by_hand.py").exists()

"""Values that break programs, in every field of administration: they are refused or kept, and never a 5xx."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from keptwork.http.routes import budgets
from tests.http.admin import admin
from tests.http.conftest import Running
from tests.http.test_supervisor import made

NASTY: list[Any] = [
    *("", "\0", "\ud800", "\udfff\ud800", "a\nb", "‮", "x" * 100_000, "'; DROP TABLE jobs; --", "%00", "null", "kw_"),
    *("1e999999999", "1e400000", "-1", "NaN", "sNaN", "9" * 45, "0001-01-01", "9999-12-31T23:59:59-23:59"),
    *(float("nan"), {"a": float("inf")}),
    *(0, -1, 1 << 31, 1 << 63, 1 << 80, 1e308, True, None, [], {}, [[]], {"a": {"b": "\ud800"}}, ["\0"], ["\ud800"]),
]
QUICK: list[Any] = ["\0", "\ud800", "1e999999999", {"a": float("nan")}]
BODIES: dict[str, dict[str, Any]] = {
    "/api/supervisor/workers": {"workspace_id": "w", "name": "n", "queues": ["q"], "concurrency": 1, "metadata": {}},
    "/api/agent-jobs": {"description": "d", "skill": "s", "output_schema": {}, "retry_base": "1s", "budget_usd": "1"},
    "/api/skills/route": {"text": "t"},
    "/api/budgets/tenant/set": {"usd": "1"},
    "/api/budgets/tenant/raise": {"usd": "1"},
    "/api/keys": {"name": "n", "scopes": ["read"], "expires": "1d"},
    "/api/doctor/fix": {"stuck_after": ["1h"]},
    "/api/overrides": {"id": "job_x", "to": "failed", "reason": "r", "dry_run": True},
}
PATHS: tuple[str, ...] = (
    "/api/budgets/{}",
    "/api/skills/{}",
    "/api/tools/{}",
    "/api/keys/{}",
    "/api/agent-jobs/{}",
    "/api/cost?by={}",
)
PATHS += ("/api/cost?since={}", "/api/doctor?stuck_after={}", "/api/jobs?text={}", "/api/jobs?since={}")


@pytest.fixture
def boss(running: Running) -> Iterator[httpx.Client]:
    with admin(running) as opened:
        yield opened


def sent(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    """As JSON that Python writes, with what is none: NaN."""
    text = json.dumps(body).encode()
    return client.post(path, content=text, headers={"Content-Type": "application/json"})


def faults(client: httpx.Client, values: list[Any], **bodies: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Where such a value in a body was answered as a fault of the server."""
    return [
        (path, field, value)
        for path, body in bodies.items()
        for field in (*body, "request_id")
        for value in values
        if sent(client, path, {**body, field: value}).status_code >= 500
    ]


def every_body(client: httpx.Client) -> dict[str, dict[str, Any]]:
    command = f"/api/supervisor/workers/{made(client)}/terminate"
    return {**BODIES, command: {"reason": "r", "hard": True}}


def test_a_body_with_such_a_value_is_never_a_fault_of_the_server(boss: httpx.Client) -> None:
    assert faults(boss, QUICK, **every_body(boss)) == []


@pytest.mark.chaos
def test_not_with_any_of_them(boss: httpx.Client) -> None:
    assert faults(boss, NASTY, **every_body(boss)) == []
    print(f"{len(NASTY)} values in every field of {len(BODIES) + 1} bodies: no 5xx")


def test_a_value_that_is_a_fault_is_noticed(boss: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "micros", lambda usd: int(float(usd)))  # a twin that takes whatever it is given
    path = "/api/budgets/tenant/raise"
    assert (path, "usd", "1e999999999") in faults(boss, QUICK, **{path: BODIES[path]})


def test_an_address_with_such_a_value_is_never_a_fault_of_the_server(boss: httpx.Client) -> None:
    for value in ("%00", "%FF", "%ED%A0%80", "%2F..%2F", "0001-01-01", "9999-12-31"):
        for path in PATHS:
            answer = boss.get(path.format(value))
            assert answer.status_code < 500, (path, value, answer.text)

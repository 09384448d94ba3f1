"""Every route asks for the scope that the documentation says, and all other scopes together do not open it."""

from __future__ import annotations

import httpx
import pytest

from keptwork.access.scopes import Scope
from keptwork.http.auth import Caller, Principal
from tests.http.admin import only
from tests.http.conftest import Running
from tests.http.flow_stage import run, step_named, workstream
from tools.routes import routes

OPEN = ["/healthz", "/readyz"]
ENDLESS = "/api/events/stream"


def opened_by_others(running: Running, *left_out: str) -> list[str]:
    """The routes that a key with every scope but theirs, and not for administration, is let through."""
    found = []
    for scope in Scope:
        others = [one for one in Scope if one not in (scope, Scope.ADMIN)]
        with only(running, *others) as client:
            for route in routes():
                if route.scope == scope and route.path not in left_out:
                    address = route.path.replace("{", "").replace("}", "")
                    found += [route.path] if client.request(route.method, address).status_code != 403 else []
    return found


def test_no_route_is_opened_by_the_scopes_of_others(strict: Running) -> None:
    assert [route.path for route in routes() if route.scope is None] == OPEN
    assert opened_by_others(strict) == []


def test_a_server_to_which_everybody_is_an_administrator_is_noticed(
    strict: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def anybody(token: str) -> Principal:
        return Caller(strict.ours, frozenset(Scope), "key:anybody")

    monkeypatch.setattr(strict.app.state, "authenticate", anybody)
    assert len(opened_by_others(strict, ENDLESS)) == len(list(routes())) - len(OPEN) - 1


OF_OPS = {"id": "sign", "approval": {"question": "Ship it?", "by": "ops"}}
RUN_OF_OPS = {"name": "shipped", "steps": [OF_OPS]}
GRAPH_OF_OPS = {"name": "graph", "steps": [OF_OPS, {"id": "after", "approval": {}, "depends_on": ["sign"]}]}


def refused(answer: httpx.Response) -> str:
    assert answer.status_code == 403, answer.text
    return str(answer.json()["detail"])


def test_a_scope_that_is_missing_is_called_by_its_word(running: Running) -> None:
    """It said <Scope.WRITE: 'write'>."""
    with only(running, "read") as reader:
        said = refused(reader.post("/api/jobs", json={"kind": "send"}))
    assert said == "This needs a key with the scope 'write'; this one has: read"


def test_what_is_asked_of_somebody_is_answered_by_a_key_for_them_alone(client: httpx.Client, running: Running) -> None:
    made = run(client, RUN_OF_OPS)
    (question,) = client.get(f"/api/runs/{made['id']}").json()["questions"]
    ways = (f"/api/approvals/{question['id']}", f"/api/runs/{made['id']}")
    with only(running, "approve", "approve:legal") as others, only(running, "approve:ops") as ops:
        for way in ways:
            for verb in ("approve", "reject"):
                assert "'approve:ops'" in refused(others.post(f"{way}/{verb}"))
        assert client.get(f"/api/runs/{made['id']}").json()["state"] == "WAITING_APPROVAL"
        assert ops.post(f"{ways[1]}/approve").json()["state"] == "SUCCEEDED"
        assert ops.post(f"{ways[0]}/approve").status_code == 200


def test_what_is_asked_of_anyone_is_not_for_keys_of_somebody(client: httpx.Client, running: Running) -> None:
    made = run(client)
    with only(running, "approve:ops") as ops, only(running, "admin") as admin:
        assert "'approve'" in refused(ops.post(f"/api/runs/{made['id']}/approve"))
        assert admin.post(f"/api/runs/{made['id']}/approve").json()["state"] == "SUCCEEDED"
        ofops = run(client, RUN_OF_OPS)
        assert admin.post(f"/api/runs/{ofops['id']}/approve").json()["state"] == "SUCCEEDED"


def test_whoever_skips_or_forks_past_an_approval_must_be_able_to_give_it(
    client: httpx.Client, running: Running
) -> None:
    made = workstream(client, GRAPH_OF_OPS)
    step = step_named(client, made["id"], "sign")
    with (
        only(running, "write", "approve") as others,
        only(running, "write", "approve", "approve:ops") as ops,
    ):
        assert "'approve:ops'" in refused(others.post(f"/api/steps/{step['id']}/skip"))
        (question,) = client.get(f"/api/workstreams/{made['id']}").json()["questions"]
        assert ops.post(f"/api/approvals/{question['id']}/approve").status_code == 200
        fork = {"from_step": "after"}
        assert "'approve:ops'" in refused(others.post(f"/api/workstreams/{made['id']}/fork", json=fork))
        assert ops.post(f"/api/workstreams/{made['id']}/fork", json=fork).status_code == 201

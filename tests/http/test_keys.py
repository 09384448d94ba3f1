"""Keys over HTTP: a secret is in one answer and rests nowhere, and a revoked key dies on every server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from keptwork.access import api_keys, scopes
from keptwork.http.idempotency import Once
from keptwork.store import open_store
from tests.http.admin import admin, refused_without
from tests.http.conftest import THEIRS, Running
from tests.http.test_isolation import told
from tests.support import command
from tests.support.at_rest import everything
from tests.support.dev_server import announced, ended

NEW = {"name": "ci", "scopes": ["read", "write"]}
ONCE = {"Idempotency-Key": "k"}


@pytest.fixture
def boss(running: Running) -> Iterator[httpx.Client]:
    with admin(running) as opened:
        yield opened


def made(client: httpx.Client, **more: object) -> dict[str, Any]:
    answer = client.post("/api/keys", json={**NEW, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def at_rest(running: Running) -> str:
    return asyncio.run(everything(running.url))


# --- secrets


def test_a_key_is_made_with_a_secret_that_opens_and_is_shown_by_nothing_else(
    boss: httpx.Client, running: Running
) -> None:
    answer = boss.post("/api/keys", json={**NEW, "expires": None})
    key, secret = answer.json()["key"], answer.json()["secret"]
    assert scopes.parse(secret) is not None
    found = running.do(lambda store: api_keys.authenticate(store, secret))
    assert found is not None
    assert (found.tenant_id, sorted(found.scopes), found.actor) == (running.ours, ["read", "write"], key["id"])
    assert (key["name"], key["scopes"], key["state"]) == ("ci", ["read", "write"], "live")
    assert (key["created_by"], key["expires_at"]) == ("key:admin", None)
    for path in ("/api/keys", f"/api/keys/{key['id']}", "/api/keys?ended=true"):
        shown = boss.get(path).text
        assert key["id"] in shown
        assert secret not in shown
        assert scopes.ApiKey(secret).hash not in shown


def kept_of_a_made_and_a_rotated_one(boss: httpx.Client) -> list[str]:
    """Their secrets, after all of it was asked for twice under a key."""
    first, again = (boss.post("/api/keys", json=NEW, headers=ONCE) for _ in range(2))
    path = f"/api/keys/{first.json()['key']['id']}/rotate"
    new, twice = (boss.post(path, json={"overlap": "1h"}, headers=ONCE) for _ in range(2))
    for one, other in ((first, again), (new, twice)):
        assert (one.status_code, other.status_code) == (201, 201)
        assert other.headers["Idempotency-Replayed"] == "true"
        assert one.json()["key"] == other.json()["key"]
        assert other.json()["secret"] in (None, one.json()["secret"])
    return [answer.json()["secret"] for answer in (first, new)]


def test_a_secret_rests_nowhere_not_even_in_what_an_idempotency_key_remembers(
    boss: httpx.Client, running: Running
) -> None:
    secrets = kept_of_a_made_and_a_rotated_one(boss)
    assert len(boss.get("/api/keys").json()["keys"]) == 2
    there = at_rest(running)
    assert scopes.ApiKey(secrets[0]).hash in there, "this looks in the wrong place"
    assert [secret for secret in secrets if secret in there] == []


def test_a_server_that_remembers_secrets_is_noticed(
    boss: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Once.__call__
    monkeypatch.setattr(Once, "__call__", lambda self, asked, work, status, secret: shipped(self, asked, work, status))
    secrets = kept_of_a_made_and_a_rotated_one(boss)
    there = at_rest(running)
    assert all(secret in there for secret in secrets)


def test_whoever_lost_the_answer_is_told_which_key_it_was_and_can_do_away_with_it(boss: httpx.Client) -> None:
    boss.post("/api/keys", json=NEW, headers=ONCE)
    again = boss.post("/api/keys", json=NEW, headers=ONCE).json()
    assert again["secret"] is None
    assert boss.post(f"/api/keys/{again['key']['id']}/rotate", json={"overlap": "0s"}).json()["secret"] is not None


def test_what_is_refused_repeats_no_secret(boss: httpx.Client) -> None:
    secret = made(boss)["secret"]
    for answer in (boss.get(f"/api/keys/{secret}"), boss.post(f"/api/keys/{secret}/revoke")):
        assert answer.status_code == 422
        assert secret not in answer.text


# --- keeping keys


def test_keys_are_listed_newest_first_page_by_page_and_ended_ones_if_asked(boss: httpx.Client) -> None:
    ids = [made(boss, name=f"n{number}")["key"]["id"] for number in range(4)]
    boss.post(f"/api/keys/{ids[1]}/revoke")
    page = boss.get("/api/keys", params={"limit": 2}).json()
    rest = boss.get("/api/keys", params={"limit": 2, "after": page["next"]}).json()
    assert [one["id"] for one in page["keys"] + rest["keys"]] == [ids[3], ids[2], ids[0]]
    assert rest["next"] is None
    assert len(boss.get("/api/keys", params={"ended": True}).json()["keys"]) == 4


def test_a_key_is_revoked_once_and_for_all_and_cannot_be_rotated_then(boss: httpx.Client) -> None:
    id = made(boss)["key"]["id"]
    first, second = (boss.post(f"/api/keys/{id}/revoke").json()["key"] for _ in range(2))
    assert first == second
    assert (first["state"], first["revoked_by"]) == ("revoked", "key:admin")
    refused = boss.post(f"/api/keys/{id}/rotate")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:keptwork:problem:key-ended")


def test_a_rotated_key_lives_on_for_the_overlap(boss: httpx.Client, running: Running) -> None:
    old = made(boss)
    new = boss.post(f"/api/keys/{old['key']['id']}/rotate", json={"overlap": "1h"}).json()
    both = [running.do(lambda store, one=one: api_keys.authenticate(store, one["secret"])) for one in (old, new)]  # type: ignore[misc]
    assert None not in both
    shown = boss.get(f"/api/keys/{old['key']['id']}").json()["key"]
    assert (shown["state"], shown["replaced_by"]) == ("replaced", new["key"]["id"])
    assert boss.post(f"/api/keys/{new['key']['id']}/rotate", json={"overlap": "31d"}).status_code == 422


def test_what_is_no_key_is_a_problem_and_stores_nothing(boss: httpx.Client) -> None:
    bodies: list[dict[str, Any]] = [
        *({}, {"name": "a"}, {"scopes": ["read"]}, {**NEW, "scopes": []}, {**NEW, "scopes": ["root"]}),
        *({**NEW, "expires": "0s"}, {**NEW, "expires": "soon"}, {**NEW, "name": ""}, {**NEW, "name": "a\0"}),
        {**NEW, "tenant": "another"},
    ]
    assert {boss.post("/api/keys", json=body).status_code for body in bodies} == {422}
    assert boss.get("/api/keys").json()["keys"] == []


def test_a_key_says_whom_it_stands_for(client: httpx.Client, running: Running) -> None:
    found = client.get("/api/whoami").json()
    assert found["scopes"] == ["approve", "read", "supervise", "write"]
    assert (found["actor"], found["tenant"].startswith("ours-")) == ("key:k1", True)


# --- who may


def test_only_an_administrator_handles_keys_and_only_those_of_the_tenant(boss: httpx.Client, running: Running) -> None:
    id = made(boss)["key"]["id"]
    paths = [("POST", "/api/keys"), ("GET", "/api/keys"), ("GET", f"/api/keys/{id}")]
    paths += [("POST", f"/api/keys/{id}/revoke"), ("POST", f"/api/keys/{id}/rotate")]
    for method, path in paths:
        refused_without(running, "admin", method, path, NEW if path == "/api/keys" else None)
    id = made(boss)["key"]["id"]
    with running.client(THEIRS) as theirs:
        for method, path in (("GET", ""), ("POST", "/revoke"), ("POST", "/rotate")):
            foreign, unknown = (told(theirs.request(method, f"/api/keys/{one}{path}")) for one in (id, "key_none"))
            assert foreign == unknown
            assert foreign[0] == 404
        assert theirs.get("/api/keys").json()["keys"] == []
    assert boss.get(f"/api/keys/{id}").json()["key"]["state"] == "live"
    refused_without(running, "read", "GET", "/api/whoami")


# --- several servers


@contextmanager
def serve(url: str) -> Iterator[str]:
    process = command.start("serve", "--port", "0", "--db", url, "--json")
    try:
        yield announced(process)["address"]
    finally:
        assert ended(process) == 0


def first_key(url: str) -> str:
    async def make() -> str:
        store = await open_store(url)
        try:
            made = await api_keys.create(store, await store.tenant("default"), "first", ["admin"], by="test")
            return made.secret.value
        finally:
            await store.close()

    return asyncio.run(make())


def seconds_until_dead(revoking: httpx.Client, other: httpx.Client, id: str) -> float:
    """How long a key that is in use on one server outlives its end on another."""
    assert other.get("/api/jobs").status_code == 200
    assert revoking.post(f"/api/keys/{id}/revoke").status_code == 200
    since = time.monotonic()
    while other.get("/api/jobs").status_code == 200:
        assert time.monotonic() - since < 60, "it never dies"
        time.sleep(0.02)
    assert other.get("/api/jobs").status_code == 401
    return time.monotonic() - since


@pytest.mark.acceptance
def test_a_key_revoked_on_one_server_is_dead_on_another_within_five_seconds(database_url: str) -> None:
    first = first_key(database_url)
    with ExitStack() as stack:
        here, there = (stack.enter_context(serve(database_url)) for _ in range(2))
        boss = stack.enter_context(httpx.Client(base_url=here, headers={"Authorization": f"Bearer {first}"}))
        key = boss.post("/api/keys", json=NEW).raise_for_status().json()
        bearer = {"Authorization": f"Bearer {key['secret']}"}
        other = stack.enter_context(httpx.Client(base_url=there, headers=bearer))
        lived = seconds_until_dead(boss, other, key["key"]["id"])
    scheme = database_url.partition(":")[0]
    print(json.dumps({"revoked key dead on another server after seconds": round(lived, 2), "database": scheme}))
    assert lived <= 5

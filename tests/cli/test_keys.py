"""`keptwork keys` as its users run it: a key is made, used, rotated and revoked."""

from __future__ import annotations

import asyncio
import json

from keptwork.access import api_keys, scopes
from keptwork.access.api_keys import Principal
from keptwork.store import open_store
from tests.cli.queue_scene import answer, said
from tests.support.command import run


def let_in(url: str, secret: str) -> Principal | None:
    async def ask() -> Principal | None:
        store = await open_store(url)
        try:
            return await api_keys.authenticate(store, secret)
        finally:
            await store.close()

    return asyncio.run(ask())


def test_a_key_is_made_used_rotated_and_revoked(sqlite_url: str) -> None:
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert said(sqlite_url, "keys", "list").startswith("No keys: make one with keptwork keys create")
    done = run("keys", "create", "--name", "ci", "--scopes", "read, write", "--db", sqlite_url)
    secret = done.stdout.strip()
    assert scopes.parse(secret) is not None
    assert done.stdout == f"{secret}\n", "only the secret, so that it can be piped"
    assert "(ci) is for read, write; it expires at 20" in done.stderr
    assert "shown this once" in done.stderr
    assert let_in(sqlite_url, secret) is not None

    (row,) = answer(sqlite_url, "keys", "list")["keys"]
    assert (row["name"], row["scopes"], row["state"]) == ("ci", ["read", "write"], "live")
    assert row["last_used_at"] is not None
    listed = said(sqlite_url, "keys", "list")
    assert all(words in listed for words in (row["id"], "ci", "read,write", "live"))

    rotated = answer(sqlite_url, "keys", "rotate", row["id"], "--overlap", "1h")
    assert let_in(sqlite_url, rotated["secret"]) is not None
    assert let_in(sqlite_url, secret) is not None
    assert [one["state"] for one in answer(sqlite_url, "keys", "list")["keys"]] == ["live", "replaced"]

    told = said(sqlite_url, "keys", "revoke", row["id"])
    assert told == f"{row['id']} (ci) is revoked; servers that are running know within 5 s.\n"
    assert let_in(sqlite_url, secret) is None
    assert [one["id"] for one in answer(sqlite_url, "keys", "list")["keys"]] == [rotated["key"]["id"]]
    every = run("keys", "list", "--all", "--json", "--db", sqlite_url).stdout
    assert [one["state"] for one in json.loads(every)["keys"]] == ["live", "revoked"]
    assert not any(hidden in every + listed for hidden in (secret, rotated["secret"], "hash"))


def test_keys_belong_to_their_tenant(sqlite_url: str) -> None:
    assert run("migrate", "--db", sqlite_url).returncode == 0
    said(sqlite_url, "tenants", "add", "acme")
    wanted = ("--name", "ops", "--scopes", "admin", "--expires", "never", "--tenant", "acme")
    made = answer(sqlite_url, "keys", "create", *wanted)
    assert made["key"]["expires_at"] is None
    found = let_in(sqlite_url, made["secret"])
    assert found is not None
    assert found.tenant_id == 2
    assert answer(sqlite_url, "keys", "list", "--all")["keys"] == []
    for verb in ("revoke", "rotate"):
        done = run("keys", verb, made["key"]["id"], "--db", sqlite_url)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "No key" in done.stderr
    assert let_in(sqlite_url, made["secret"]) == found


def test_what_cannot_be_is_refused_in_one_line(sqlite_url: str) -> None:
    assert run("migrate", "--db", sqlite_url).returncode == 0
    secret = scopes.new().value
    for words, told in (
        (("create", "--name", "a", "--scopes", "root"), "'root' is no scope; a key is for read, write, approve"),
        (("create", "--name", "a", "--scopes", ","), "give it scopes of read, write"),
        (("create", "--name", "a", "--scopes", "read", "--expires", "soon"), "'soon' is no duration"),
        (("list", "--limit", "0"), "a list holds 1 to 10000 keys, not 0"),
        (("revoke", secret), "is a secret, not the id of a key"),
    ):
        done = run("keys", *words, "--db", sqlite_url)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert told in done.stderr
        assert secret not in done.stdout + done.stderr

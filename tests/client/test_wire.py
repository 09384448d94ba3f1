"""The wire of the client, against servers that answer well, badly, late or not at all."""

from __future__ import annotations

import doctest
import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from keptwork import errors
from keptwork.client import credentials, problems, retry, wire
from keptwork.client.credentials import server_key
from keptwork.client.problems import KINDS, error_of
from keptwork.client.retry import Patience
from keptwork.client.wire import Wire
from keptwork.errors import KeptworkError
from tests.client.odd_server import Reply, losing_proxy, odd_server
from tests.client.serving import Served
from tests.support import command

pytestmark = pytest.mark.acceptance

QUICK = Patience(first_pause=0.01, longest_pause=0.05)
KEY = "kw_test0123456789"
PROBLEM = (("Content-Type", "application/problem+json"),)


@pytest.mark.parametrize("module", [credentials, retry, problems, wire])
def test_the_examples_are_true(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


async def test_a_change_whose_answer_was_lost_is_sent_again_and_done_once(server: Served, key: str) -> None:
    with losing_proxy(server.port) as proxy:
        async with Wire(proxy.address, key, patience=QUICK) as through:
            proxy.to_lose = 2
            made = await through.change(dict[str, Any], "POST", "/api/jobs", {"kind": "fetch"})
            assert proxy.lost == 2
            listed = await through.get(dict[str, Any], "/api/jobs", {"kind": "fetch", "queue": None})
    assert [one["id"] for one in listed["jobs"]] == [made["job"]["id"]]


async def test_what_may_not_be_repeated_is_sent_once_and_its_doubt_is_told(server: Served, key: str) -> None:
    with losing_proxy(server.port) as proxy:
        async with Wire(proxy.address, key, patience=QUICK) as through:
            proxy.to_lose = 1
            with pytest.raises(errors.NoAnswer, match=r"may have been done all the same: .* key 'mine'"):
                await through.change(
                    dict, "POST", "/api/jobs", {"kind": "once"}, idempotency_key="mine", repeatable=False
                )
            assert proxy.lost == 1
            assert len((await through.get(dict[str, Any], "/api/jobs"))["jobs"]) == 1


async def test_problems_are_raised_as_the_errors_they_were_made_from(server: Served, key: str) -> None:
    async with Wire(server.address, key) as through:
        made = await through.change(dict[str, Any], "POST", "/api/jobs", {"kind": "fetch"})
        id = made["job"]["id"]
        await through.change(dict, "POST", f"/api/jobs/{id}/cancel")
        with pytest.raises(errors.InvalidTransition) as moved:
            await through.change(dict, "POST", f"/api/jobs/{id}/cancel")
        with pytest.raises(errors.NotFound, match="There is no such job") as missing:
            await through.get(dict, "/api/jobs/job_17")
        with pytest.raises(errors.InvalidRequest) as misfit:
            await through.change(dict, "POST", "/api/jobs", {"kind": ""})
    assert (moved.value.from_state, moved.value.trigger) == ("cancelled", "cancel")
    assert moved.value.status == moved.value.facts["status"] == 409
    assert missing.value.facts["request_id"]
    assert misfit.value.problems[0]["where"] == "body.kind"
    async with Wire(server.address, KEY) as stranger:
        with pytest.raises(errors.Unauthenticated):
            await stranger.get(dict, "/api/jobs")


def test_every_error_there_is_can_be_told_and_raised() -> None:
    for type_, kind in KINDS.items():
        raised = error_of({"type": type_, "title": kind.title(), "status": kind.status, "detail": "so"}, kind.status)
        assert type(raised) is kind
        assert (str(raised), raised.status, raised.facts["type"]) == ("so", kind.status, type_)
    assert type(error_of({"type": "urn:keptwork:problem:from-tomorrow"}, 418)) is KeptworkError


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_an_answer_that_may_pass_is_asked_for_again(status: int) -> None:
    replies = Reply(status, b"<html>", (("Retry-After", "0"),)), Reply(status, b"{}", PROBLEM), Reply(200, b'{"a": 1}')
    with odd_server(*replies) as odd:
        async with Wire(odd.address, KEY, patience=QUICK) as through:
            assert await through.change(dict, "POST", "/api/jobs", {"kind": "x"}) == {"a": 1}
    keys = {got.headers["idempotency-key"] for got in odd.got}
    assert (len(odd.got), len(keys)) == (3, 1)
    assert {got.body for got in odd.got} == {b'{"kind":"x"}'}


@pytest.mark.parametrize("status", [400, 404, 409, 500])
async def test_an_answer_that_stays_is_not_asked_for_again(status: int) -> None:
    document = json.dumps({"type": "urn:keptwork:problem:internal-error", "detail": "so"}).encode()
    with odd_server(Reply(status, document, PROBLEM)) as odd:
        async with Wire(odd.address, KEY, patience=QUICK) as through:
            with pytest.raises(errors.InternalError, match="so"):
                await through.get(dict, "/api/jobs")
    assert len(odd.got) == 1


async def test_it_gives_up_after_so_many_tries_and_waits_no_longer_than_it_may() -> None:
    document = json.dumps({"type": "urn:keptwork:problem:shutting-down", "detail": "so"}).encode()
    with odd_server(Reply(503, document, PROBLEM)) as odd:
        async with Wire(odd.address, KEY, patience=QUICK) as through:
            with pytest.raises(errors.ShuttingDown):
                await through.get(dict, "/api/jobs")
    assert len(odd.got) == QUICK.tries
    with odd_server(Reply(503, document, (*PROBLEM, ("Retry-After", "3600")))) as odd:
        async with Wire(odd.address, KEY, patience=QUICK) as through:
            with pytest.raises(errors.ShuttingDown):
                await through.get(dict, "/api/jobs")
    assert len(odd.got) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, b"<html>", (("Content-Type", "text/html"),)),
        Reply(200, b'{"a": '),
        Reply(404, b"not here", (("Content-Type", "text/plain"),)),
        Reply(302, b"", (("Location", "http://127.0.0.1:9/"),)),
        Reply(200, b"[" * 100_000 + b"]" * 100_000),
        Reply(200, b'"' + b"a" * 3_000_000 + b'"'),
    ],
    ids=["a page", "half a document", "no problem", "elsewhere", "too deep", "too large"],
)
async def test_an_answer_that_no_server_of_ours_gives_is_one_clear_error(reply: Reply) -> None:
    with odd_server(reply) as odd:
        async with Wire(odd.address, KEY, patience=QUICK, most_bytes=2_000_000) as through:
            with pytest.raises(errors.StrangeAnswer, match=f"GET /api/jobs with {reply.status} and"):
                await through.get(dict, "/api/jobs")
    assert len(odd.got) == 1


async def test_a_server_that_is_not_there_is_named_and_asked_as_often_as_patience_has_it() -> None:
    async with Wire("http://127.0.0.1:9", KEY, patience=Patience(tries=2, first_pause=0.01)) as through:
        with pytest.raises(errors.NoAnswer, match=r"No answer from http://127.0.0.1:9 to POST /api/jobs") as silent:
            await through.change(dict, "POST", "/api/jobs", {"kind": "x"})
    assert silent.value.facts["unsure"] == ""


async def test_the_key_is_shown_nowhere(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    with odd_server(Reply(200)) as odd:
        async with Wire(odd.address, KEY) as through:
            await through.get(dict, "/api/jobs")
            assert KEY not in repr(through) + repr(vars(through)) + repr(through._opened and through._opened.headers)
    assert odd.got[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in caplog.text


def test_the_key_comes_from_the_argument_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n", "utf-8")
    file.chmod(stat.S_IRUSR)
    assert server_key("kw_a", None, {"KEPTWORK_KEY": "kw_b"}).value == "kw_a"
    assert server_key(None, file, {"KEPTWORK_KEY": "kw_b"}).value == KEY
    assert server_key(None, None, {"KEPTWORK_KEY": "kw_b", "KEPTWORK_KEY_FILE": str(file)}).value == "kw_b"
    assert server_key(None, None, {"KEPTWORK_KEY_FILE": str(file)}).value == KEY
    file.chmod(0o644)
    with pytest.raises(errors.NoKey, match="chmod 600"):
        server_key(None, file, {})
    with pytest.raises(errors.NoKey, match="KEPTWORK_KEY"):
        server_key(None, None, {})
    with pytest.raises(errors.NoKey, match="one line"):
        server_key("kw_a\r\nX-Evil: 1", None, {})


@pytest.mark.parametrize("address", ["", "localhost:8321", "ftp://x", "http://", "http://me:secret@x", "http://x?a=1"])
def test_what_is_no_address_of_a_server_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEPTWORK_SERVER", raising=False)
    with pytest.raises(errors.BadInput) as refused:
        Wire(address, KEY)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_an_id_that_would_lead_elsewhere_is_refused(value: str) -> None:
    with pytest.raises(errors.BadInput):
        wire.segment(value)


async def test_what_is_no_json_is_refused_before_it_is_sent() -> None:
    async with Wire("http://127.0.0.1:9", KEY) as through:
        for odd in (float("nan"), object()):
            with pytest.raises(errors.BadInput, match="as JSON"):
                await through.change(dict, "POST", "/api/jobs", {"payload": odd})


def test_nothing_else_loads_what_the_client_needs() -> None:
    modules = "keptwork, keptwork.cli.main, keptwork.app, keptwork.client"
    done = command.run(python=("-c", f"import sys, {modules}; print('httpx2' in sys.modules)"))
    assert done.stdout == "False\n"

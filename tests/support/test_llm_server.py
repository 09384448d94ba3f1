"""The server that plays the part of providers: it says what it is told to, in both languages, and counts right."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from keptwork.agents.conversation import Usage
from tests.support.llm_server import Call, Cut, LlmServer, Say, use

ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATHS = ["/v1/messages", "/v1/chat/completions"]


def asked(server: LlmServer, path: str, **more: Any) -> str:
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10)
    with closing(connection):
        connection.request("POST", path, json.dumps({**ASKED, **more}))
        return connection.getresponse().read().decode()


@pytest.mark.parametrize("path", PATHS)
def test_it_answers_whole_and_in_pieces_and_bills_each_call_once(path: str) -> None:
    with LlmServer([Say("hello there", Usage(7, 3)), Say("hello there", Usage(8, 4))]) as server:
        whole = json.loads(asked(server, path))
        events = asked(server, path, stream=True, stream_options={"include_usage": True})
    assert "hello there" in json.dumps(whole)
    assert "hello there" in events
    assert [(bill.usage, bill.told) for bill in server.bills] == [(Usage(7, 3), True), (Usage(8, 4), True)]
    assert (server.billed, server.billed_by_model) == (Usage(15, 7), {"m": Usage(15, 7)})
    assert [(call.model, call.said) for call in server.calls] == [("m", "hi")] * 2


def test_a_function_can_answer_by_what_was_asked() -> None:
    def script(call: Call) -> Say:
        return use("ruff", {"n": call.number}) if call.number == 1 else Say(call.said.upper())

    with LlmServer(script) as server:
        assert json.loads(asked(server, PATHS[0]))["content"][0]["input"] == {"n": 1}
        assert json.loads(asked(server, PATHS[0]))["content"][0]["text"] == "HI"


def test_what_was_not_told_is_billed_as_untold() -> None:
    with LlmServer([Cut(usage=Usage(9, 9), clean=True)] * 2) as server:
        for path in PATHS:
            asked(server, path, stream=True, stream_options={"include_usage": True})
    assert [(bill.usage, bill.told) for bill in server.bills] == [(Usage(9, 1), True), (Usage(9, 9), False)]

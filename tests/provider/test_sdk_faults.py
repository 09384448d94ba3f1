"""Everything that can go wrong in a call, through both real SDKs: each ends as it is said to, in time, tried once."""

from __future__ import annotations

import json
import logging
import socket
import time
import traceback
from typing import Any

import pytest

from keptwork.agents.conversation import AgentFailure, BusinessFailure, Request, SystemFailure, Usage
from keptwork.agents.providers.sdk import SdkProvider
from keptwork.agents.providers.streamed_answer import Malformed
from keptwork.core.secrets import Key
from keptwork.outcomes import PermanentError
from tests.provider.conftest import CANARY, Connect
from tests.support.hook_server import hook_server
from tests.support.llm_server import (
    Act,
    BadJson,
    Cut,
    Drip,
    Hang,
    Large,
    LlmServer,
    Lose,
    Raw,
    Say,
    Status,
    use,
)

SHORT = 0.4
"""Seconds in all for a call that is to run out of time."""

SSE = {"Content-Type": "text/event-stream"}


async def failure(provider: SdkProvider, request: Request) -> AgentFailure:
    began = time.monotonic()
    with pytest.raises(AgentFailure) as raised:
        await provider.answer(request)
    assert time.monotonic() - began < 60
    assert isinstance(raised.value.__context__, Malformed | None)  # an SDK's error would hold the request
    return raised.value


async def refusal(provider: SdkProvider, request: Request) -> str:
    with pytest.raises(PermanentError) as raised:
        await provider.answer(request)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def told(server: LlmServer) -> Usage | None:
    """What a server told of the price of its one answer."""
    return next((bill.usage for bill in server.bills if bill.told), None)


OVERLOADED = [
    (Status(429, retry_after="3"), 3_000_000, "has too many requests"),
    (Status(429, retry_after="0.25"), 250_000, "has too many requests"),
    (Status(429, headers={"retry-after-ms": "1500"}, retry_after="60"), 1_500_000, "has too many requests"),
    (
        Status(429, "Wed, 21 Oct 2026 07:28:30 GMT", {"Date": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        30_000_000,
        "has too many requests",
    ),
    (Status(429, "Wed, 21 Oct 2015 07:28:00 GMT"), 0, "has too many requests"),
    (Status(429, retry_after="9" * 11), 86_400_000_000, "has too many requests"),
    (Status(429, retry_after="soon"), None, "has too many requests"),
    (Status(429), None, "has too many requests"),
    (Status(529, retry_after="7"), 7_000_000, "is overloaded"),
    (Status(500), None, "failed (500)"),
    (Status(503, "1", {"x-should-retry": "true"}), 1_000_000, "failed (503)"),
]


@pytest.mark.parametrize(("act", "wait", "words"), OVERLOADED)
async def test_a_server_that_has_too_much_to_do_or_failed_is_tried_later_and_was_not_paid(
    connect: Connect, asked: Request, act: Status, wait: int | None, words: str
) -> None:
    with LlmServer([act]) as server:
        error = await failure(connect(server.url), asked)
    assert isinstance(error, SystemFailure)
    assert (error.retry_after_us, error.sent, error.usage) == (wait, False, None)
    assert words in str(error)
    assert "the server says no" in str(error)
    assert (len(server.calls), server.bills) == (1, [])


@pytest.mark.parametrize("code", [408, 502, 504, 524])
async def test_a_gateway_that_gave_up_does_not_know_whether_somebody_was_paid(
    connect: Connect, asked: Request, code: int
) -> None:
    with LlmServer([Status(code)]) as server:
        error = await failure(connect(server.url), asked)
    assert isinstance(error, SystemFailure)
    assert error.sent


REFUSED = [
    (400, "does not accept the request (400): the server says no"),
    (401, "does not accept the key (401); check "),
    (402, "does not accept the request (402)"),
    (403, "does not let this key use"),
    (404, "knows no such thing (404): the server says no; check the model"),
    (413, "does not accept the request (413)"),
    (422, "does not accept the request (422)"),
    (307, "is elsewhere (307), where no key is sent"),
]


@pytest.mark.parametrize(("code", "words"), REFUSED)
async def test_what_cannot_succeed_is_said_in_one_line_with_what_to_do(
    connect: Connect, asked: Request, code: int, words: str
) -> None:
    with LlmServer([Status(code, headers={"Location": "/v1/messages"})]) as server:
        assert words in await refusal(connect(server.url), asked)
    assert len(server.calls) == 1


async def test_nobody_at_the_address_means_nothing_was_sent(connect: Connect, asked: Request) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        error = await failure(connect(f"http://127.0.0.1:{taken.getsockname()[1]}"), asked)
    assert isinstance(error, SystemFailure)
    assert not error.sent
    assert "cannot be reached" in str(error)


async def test_a_server_that_does_not_shake_hands_was_sent_nothing(connect: Connect, asked: Request) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = await failure(connect(f"https://127.0.0.1:{silent.getsockname()[1]}", connect=SHORT), asked)
    assert isinstance(error, SystemFailure)
    assert (error.sent, "cannot be reached" in str(error)) == (False, True)


async def test_a_server_that_cannot_prove_who_it_is_was_sent_nothing(connect: Connect, asked: Request) -> None:
    with hook_server(tls=True) as hooks:
        error = await failure(connect(hooks.url().partition("/hooks")[0]), asked)
    assert isinstance(error, SystemFailure)
    assert not error.sent
    assert not hooks.got


SLOW: list[Act] = [Hang(), Hang(begun=True), Drip(every=0.02)]


@pytest.mark.parametrize("act", SLOW)
async def test_no_server_can_hold_a_call_longer_than_its_time(connect: Connect, asked: Request, act: Act) -> None:
    with LlmServer([act]) as server:
        began = time.monotonic()
        error = await failure(connect(server.url, total=SHORT), asked)
        assert time.monotonic() - began < 60
    assert isinstance(error, SystemFailure)
    assert f"did not answer within {SHORT} s" in str(error)
    assert error.sent
    assert len(server.calls) == 1


@pytest.mark.parametrize("act", [Lose(), Cut(after=0), Cut(after=1), Cut(), Cut(clean=True), Cut(after=0, clean=True)])
async def test_an_answer_that_breaks_off_is_no_answer_and_says_what_it_told_of_its_price(
    connect: Connect, asked: Request, act: Act
) -> None:
    with LlmServer([act]) as server:
        error = await failure(connect(server.url), asked)
    assert isinstance(error, SystemFailure)
    assert error.sent
    assert "broke off" in str(error)
    assert error.usage == told(server)
    assert len(server.calls) == 1


async def test_an_answer_that_ends_before_its_last_word_is_no_answer(connect: Connect, asked: Request) -> None:
    """All of the text is there, but nobody said that it is all."""
    with LlmServer([Cut("short", after=4 if "claude" in asked.model else 2, clean=True)]) as server:
        assert isinstance(await failure(connect(server.url), asked), SystemFailure)


NO_ANSWERS = [
    (Say("", Usage(7, 3)), "the answer is empty"),
    (Say("  \n", Usage(7, 3)), "the answer is empty"),
    (Say("and so on and", Usage(7, 3), "length"), "the answer was cut off after 100 tokens; raise max_tokens"),
    (Say("I can't", Usage(7, 3), "refused"), "the model refused to answer"),
    (use("ruff", '{"path": ', usage=Usage(7, 3)), "its arguments are no JSON"),
    (use("ruff", '["src"]', usage=Usage(7, 3)), "its arguments are no JSON object"),
    (use("ruff", '{"n": NaN}', usage=Usage(7, 3)), "its arguments are no JSON"),
    (use("ruff", '{"n": ' + "[" * 100_000, usage=Usage(7, 3)), "its arguments are no JSON"),
    (use("ruff", '{"path": "\\u0000"}', usage=Usage(7, 3)), "its arguments hold signs that no text can have"),
    (use("ruff", '{"\\ud800": 1}', usage=Usage(7, 3)), "its arguments hold signs that no text can have"),
    (
        Say("", Usage(7, 3), "tools", (("ruff", "{}"), ("mypy", "{}")), same_id=True),
        "the model asks for two tools under one id",
    ),
    (use("", "{}", usage=Usage(7, 3)), "it has no name or no id"),
    (use("n" * 201, "{}", usage=Usage(7, 3)), "it has no name or no id, or too long ones"),
]


@pytest.mark.parametrize(("act", "words"), NO_ANSWERS)
async def test_an_answer_that_cannot_be_used_is_paid_for_and_no_answer(
    connect: Connect, asked: Request, act: Say, words: str
) -> None:
    with LlmServer([act]) as server:
        error = await failure(connect(server.url), asked)
    assert isinstance(error, BusinessFailure)
    assert words in str(error)
    assert (error.usage, error.sent) == (server.billed, True)
    assert server.billed == Usage(7, 3)


async def test_what_is_no_json_is_no_answer(connect: Connect, asked: Request) -> None:
    with LlmServer([BadJson()]) as server:
        error = await failure(connect(server.url), asked)
    assert isinstance(error, BusinessFailure)
    assert "something that cannot be understood" in str(error)
    assert error.usage == told(server)


@pytest.mark.parametrize("act", [Large(), Large(lines=False), Large(5 << 20)])
async def test_an_answer_of_ten_megabytes_is_left_where_it_is(connect: Connect, asked: Request, act: Large) -> None:
    with LlmServer([act]) as server:
        error = await failure(connect(server.url), asked)
    assert isinstance(error, BusinessFailure)
    assert "the answer is larger than 4,194,304 bytes" in str(error)


async def test_without_the_limits_a_large_answer_and_a_slow_one_would_have_come(
    connect: Connect, asked: Request
) -> None:
    """So it is the limits that ended them, and nothing else."""
    with LlmServer([Large(), Drip("slow", every=0.0001)]) as server:
        provider = connect(server.url, total=60, most_bytes=64 << 20)
        assert len((await provider.answer(asked)).text) == 10 << 20
        assert (await provider.answer(asked)).text == "slow"


async def test_an_error_of_ten_megabytes_is_left_there_too(connect: Connect, asked: Request) -> None:
    with LlmServer([Raw(500, {"Content-Type": "application/json"}, b"x" * (10 << 20))]) as server:
        error = await failure(connect(server.url), asked)
    assert "larger than" in str(error)


async def test_a_packed_answer_is_not_unpacked(connect: Connect, asked: Request) -> None:
    """Ten kilobytes can become ten megabytes."""
    with LlmServer([Raw(200, {**SSE, "Content-Encoding": "gzip"}, b"\x1f\x8b" + bytes(100))]) as server:
        assert "packs its answers" in await refusal(connect(server.url), asked)


def events(*said: Any) -> Raw:
    """What is not quite a stream, in both languages."""
    parts = [
        f"event: {one.get('type', 'x') if isinstance(one, dict) else 'x'}\ndata: {json.dumps(one)}\n\n" for one in said
    ]
    return Raw(200, SSE, "".join(parts).encode())


CHOICE = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
START = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}}
NONSENSE = [
    Raw(200, {"Content-Type": "text/html"}, b"<html>log in to the hotel</html>"),
    Raw(200, SSE, b""),
    Raw(200, SSE, b"\xff\xfe\n\n"),
    events({"type": "message_start"}),
    events({"type": "message_start", "message": {"model": 1, "usage": None}}),
    events({"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": "9", "output_tokens": -1}}}),
    events(START, {"type": "content_block_start", "index": "x", "content_block": {"type": "tool_use"}}),
    events(START, {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}}),
    events(START, {"type": "message_delta", "delta": {"stop_reason": "bored"}, "usage": {"output_tokens": 1}}),
    events(START, {"type": "message_delta", "delta": {"stop_reason": []}, "usage": {"output_tokens": 1}}),
    events(START, {"type": "message_stop"}),
    events(START, [1], 2, None, "three"),
    events({"model": "m", "choices": 5}),
    events({"model": "m", "choices": [None]}),
    events({"model": "m", "choices": [{**CHOICE, "delta": {"content": 5}}]}),
    events({"model": "m", "choices": [{**CHOICE, "finish_reason": "bored"}]}),
    events({"model": "m", "choices": [{**CHOICE, "delta": {"tool_calls": [{"index": -1}]}}]}),
    events({"model": "m", "choices": [{**CHOICE, "delta": {"tool_calls": [{"index": 10**9, "id": 7}]}}]}),
    events({"model": "m", "choices": [CHOICE], "usage": {"prompt_tokens": "many", "completion_tokens": None}}),
    events({"error": "no"}),
    events({"type": "error", "error": {"type": "overloaded_error", "message": "later"}}),
    Raw(200, SSE, b"event: message_start\ndata: " + b"[" * 100_000 + b"\n\n"),
]


@pytest.mark.parametrize("act", NONSENSE)
async def test_nonsense_is_a_failure_and_nothing_worse(connect: Connect, asked: Request, act: Raw) -> None:
    with LlmServer([act]) as server:
        error = await failure(connect(server.url), asked)
    assert isinstance(error, SystemFailure | BusinessFailure)
    assert "\n" not in str(error)
    assert len(str(error)) < 500


async def test_an_error_in_the_middle_of_an_answer_keeps_what_was_told(connect: Connect, asked: Request) -> None:
    said = {"type": "error", "error": {"type": "overloaded_error", "message": "later, please"}}
    chunk = {"model": "m", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    start = START if "claude" in asked.model else chunk
    with LlmServer([events(start, said)]) as server:
        error = await failure(connect(server.url), asked)
    assert isinstance(error, SystemFailure)
    assert (error.usage, error.sent) == (Usage(1, 1), True)
    assert "later, please" in str(error)


EVERYTHING: list[Act] = [
    *(act for act, _, _ in OVERLOADED[:1]),
    *(Status(code, message=f"bad key {CANARY}") for code in (400, 401, 403, 404, 429, 500)),
    Raw(500, {"X-Echo": CANARY}, CANARY.encode()),
    *SLOW,
    Lose(),
    Cut(),
    BadJson(),
    Large(),
    events({"type": "error", "error": {"message": CANARY}}),
    Say(""),
]


@pytest.mark.parametrize("act", EVERYTHING)
async def test_the_key_is_in_no_error_no_log_and_no_repr(
    connect: Connect, asked: Request, act: Act, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with LlmServer([act]) as server:
        provider = connect(server.url, total=SHORT)
        with pytest.raises((AgentFailure, PermanentError)) as raised:
            await provider.answer(asked)
    assert CANARY in json.dumps(dict(server.calls[0].headers))  # it was used
    seen = [str(raised.value), repr(raised.value), repr(provider), repr(vars(provider)), repr(vars(raised.value))]
    seen += traceback.format_exception(raised.value)
    seen += [record.getMessage() for record in caplog.records if not _echoed(record)]
    assert not [text for text in seen if CANARY in text]


async def test_without_hiding_a_server_could_make_the_key_show(
    connect: Connect, asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what hides it is no ornament."""
    monkeypatch.setattr(Key, "hidden_in", lambda _, text: text)
    with LlmServer([Status(500, message=f"bad key {CANARY}")]) as server:
        assert CANARY in str(await failure(connect(server.url), asked))


def _echoed(record: logging.LogRecord) -> bool:
    """The SDKs log the headers of replies when asked to; a server that sends a key back is not theirs to mend."""
    return "X-Echo" in record.getMessage() or "x-echo" in record.getMessage()

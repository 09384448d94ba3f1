"""Calls that succeed, through both real SDKs: what is sent, what comes back, and that it costs what the server says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from keptwork.agents.budget_rules import cost_micros, most_input_tokens
from keptwork.agents.conversation import Message, Offer, Request, Role, Stop, ToolUse, Usage
from keptwork.agents.providers.openai import OpenAI
from keptwork.agents.providers.sdk import load
from keptwork.core.secrets import Key
from keptwork.settings import Config
from tests.provider.conftest import CANARY, Connect
from tests.support.command import environment
from tests.support.llm_server import Call, Hang, LlmServer, Raw, Say, Status, use

PLAIN = Config.model_validate({})


async def test_an_answer_has_the_text_the_model_and_what_the_server_counted(connect: Connect, asked: Request) -> None:
    pieces: list[str] = []
    usage = Usage(11, 7, cache_read=5, cache_write=3)
    with LlmServer([Say("Hello, wörld 𝄞. " * 5, usage, model="that-one")]) as server:
        answer = await connect(server.url).answer(asked, pieces.append)
    assert answer.text == "Hello, wörld 𝄞. " * 5 == "".join(pieces)
    assert len(pieces) > 2
    assert (answer.usage, answer.model, answer.stop, answer.request_id) == (usage, "that-one", Stop.END, "req_1")
    assert (server.billed, server.bills[0].told) == (usage, True)


async def test_it_sends_the_key_the_question_and_the_name_of_the_try(connect: Connect, asked: Request) -> None:
    with LlmServer() as server:
        await connect(server.url).answer(asked)
    (call,) = server.calls
    assert CANARY in (call.headers.get("authorization", "") + call.headers.get("x-api-key", ""))
    assert call.headers["idempotency-key"] == "job_1:reply"
    assert call.headers["accept-encoding"] == "identity"
    assert (call.model, call.said, call.body["stream"]) == (asked.model, "Say hello", True)
    assert call.body["max_tokens"] == 100
    assert "You are brief." in str(call.body)


def conversation(asked: Request) -> Request:
    uses = (ToolUse("use_1", "ruff", {"path": "src"}), ToolUse("use_2", "mypy", {}))
    messages = (
        *asked.messages,
        Message(Role.ASSISTANT, "Looking.", uses),
        Message(Role.TOOL, "all good", answers="use_1"),
        Message(Role.TOOL, "exit 2", answers="use_2", failed=True),
        Message(Role.ASSISTANT, "", (ToolUse("use_3", "ruff", {"path": "tests"}),)),
        Message(Role.TOOL, "all good too", answers="use_3"),
    )
    offers = (Offer("ruff", "Lints", {"type": "object"}), Offer("mypy", "Types", {"type": "object"}))
    return Request(asked.model, messages, offers=offers)


async def test_a_conversation_with_tools_is_sent_whole_and_answered_with_uses(connect: Connect, asked: Request) -> None:
    given = {"path": "a b", "deep": [1, {"x": None}], "text": "é" * 30}
    with LlmServer([use("ruff", given, "One more.")]) as server:
        answer = await connect(server.url).answer(conversation(asked))
    (call,) = server.calls
    assert call.tools == ["ruff", "mypy"]
    assert [text.removeprefix("The tool failed: ") for text in call.results] == ["all good", "exit 2", "all good too"]
    assert (answer.stop, answer.text) == (Stop.TOOLS, "One more.")
    (used,) = answer.uses
    assert (used.name, dict(used.arguments)) == ("ruff", given)
    assert answer.message == Message(Role.ASSISTANT, "One more.", answer.uses)


async def test_a_tool_that_takes_nothing_may_be_given_nothing(connect: Connect, asked: Request) -> None:
    with LlmServer([use("ruff", "")]) as server:
        answer = await connect(server.url).answer(conversation(asked))
    assert answer.uses[0].arguments == {}


async def test_what_tools_gave_back_in_one_turn_is_one_message_for_claude(connect: Connect, asked: Request) -> None:
    with LlmServer() as server:
        await connect(server.url).answer(conversation(asked))
    roles = [message["role"] for message in server.calls[0].body["messages"]]
    if "claude" in asked.model:
        assert roles == ["user", "assistant", "user", "assistant", "user"]
        assert [one.get("is_error") for one in server.calls[0].body["messages"][2]["content"]] == [None, True]
    else:
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool"]


@pytest.mark.parametrize("model", ["", "\x1b[2J", "m" * 10_000, "é"])
async def test_a_name_that_is_none_is_not_taken_over(connect: Connect, asked: Request, model: str) -> None:
    with LlmServer([Say("x", model=model or "\n")]) as server:
        assert (await connect(server.url).answer(asked)).model == asked.model


async def test_signs_that_cannot_be_stored_are_replaced(connect: Connect, asked: Request) -> None:
    with LlmServer([Say("a\0b\ud800c \ud83d\ude00", piece=1)]) as server:
        answer = await connect(server.url).answer(asked)
    assert answer.text == "a\ufffdb\ufffdc 😀"
    answer.text.encode()


async def test_one_who_listens_and_fails_does_not_spoil_the_answer(connect: Connect, asked: Request) -> None:
    def broken(_: str) -> None:
        raise ValueError("no screen")

    with LlmServer([Say("still said", piece=2)]) as server:
        assert (await connect(server.url).answer(asked, broken)).text == "still said"


async def test_the_cost_of_many_calls_is_what_the_server_billed(connect: Connect, asked: Request) -> None:
    def script(call: Call) -> Say | Status:
        return Status(529) if call.number % 5 == 0 else Say("x" * call.number)

    with LlmServer(script) as server:
        provider = connect(server.url)
        said = await asyncio.gather(*(provider.answer(asked) for _ in range(20)), return_exceptions=True)
    answers = [answer for answer in said if not isinstance(answer, BaseException)]
    assert (len(server.calls), len(answers)) == (20, 16)
    spent = sum(cost_micros(provider.name, asked.model, answer.usage, PLAIN) for answer in answers)
    assert spent == sum(cost_micros(provider.name, bill.model, bill.usage, PLAIN) for bill in server.bills)


async def test_a_server_that_does_not_tell_its_price_is_counted_at_the_most_it_can_be() -> None:
    """Some that are compatible with Chat Completions never do."""
    body = b'data: {"model": "m", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
    request = Request("m", (Message(Role.USER, "hi"),), max_tokens=100)
    with LlmServer([Raw(200, {"Content-Type": "text/event-stream"}, body)]) as server:
        answer = await OpenAI(Key(CANARY), server.url).answer(request)
    assert (answer.text, answer.usage) == ("x", Usage(most_input_tokens(request), 100))


async def test_a_call_that_is_cancelled_ends_at_once_and_stays_cancelled(connect: Connect, asked: Request) -> None:
    with LlmServer([Hang()]) as server:
        call = asyncio.create_task(connect(server.url).answer(asked))
        await asyncio.to_thread(server.wait_for_calls, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, 60)


@pytest.mark.acceptance
def test_nothing_of_an_sdk_is_loaded_before_a_call() -> None:
    code = """
import sys
from keptwork.settings import read
from keptwork.agents.providers.choose import choose
choose(read(), {"ANTHROPIC_API_KEY": "sk-x"}), choose(read(), {"OPENAI_API_KEY": "sk-x"})
print([name for name in ("anthropic", "openai", "httpx2", "genai_prices") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_sdk_that_is_not_installed_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Exception, match=r"^The provider anthropic .* pip install 'keptwork\[anthropic\]'$"):
        load("anthropic")

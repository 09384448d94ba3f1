"""How answers look in the Messages API and in Chat Completions, frame by frame, and what of it tells the price."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from keptwork.agents.conversation import Usage
from tests.support.llm_acts import MESSAGES, Call, Say, tokens


class Frame(NamedTuple):
    """A piece of an answer, and what it tells of its price."""

    data: bytes
    tells: Usage | None = None


def _arguments(given: Mapping[str, Any] | str) -> str:
    return given if isinstance(given, str) else json.dumps(given)


MOST_TOKENS = 1 << 30
"""Where a call names no limit."""


def usage_of(call: Call, say: Say) -> Usage:
    """However much is said, nobody is billed for more than the call allows."""
    output = say.text + "".join(name + _arguments(given) for name, given in say.uses)
    most = call.body.get("max_completion_tokens") or call.body.get("max_tokens") or MOST_TOKENS
    return say.usage or Usage(call.tokens, min(tokens(output), most))


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def streamed(call: Call, say: Say) -> Iterator[Frame]:
    return _message_events(call, say) if call.api == MESSAGES else _chunks(call, say)


def plain(call: Call, say: Say) -> Iterator[Frame]:
    body = _message(call, say) if call.api == MESSAGES else _completion(call, say)
    yield Frame(json.dumps(body).encode(), usage_of(call, say))


# --- Messages ---------------------------------------------------------------------------------------------------

_STOPS = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens", "refused": "refusal"}


def _message(call: Call, say: Say) -> dict[str, Any]:
    text = [{"type": "text", "text": say.text}] if say.text else []
    uses = [
        {"type": "tool_use", "id": f"toolu_{call.number}_{0 if say.same_id else at}", "name": name, "input": given}
        for at, (name, given) in enumerate(say.uses)
    ]
    return {
        "id": f"msg_{call.number}",
        "type": "message",
        "role": "assistant",
        "model": say.model or call.model,
        "content": [*text, *uses],
        "stop_reason": _STOPS[say.stop],
        "stop_sequence": None,
        "usage": _message_usage(usage_of(call, say)),
    }


def _message_usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
    }


def _message_events(call: Call, say: Say) -> Iterator[Frame]:
    """As the API streams: the price of the input comes first, that of the output with the end."""
    usage, whole = usage_of(call, say), _message(call, say)
    first = usage._replace(output=min(1, usage.output))
    start = {**whole, "content": [], "stop_reason": None, "usage": _message_usage(first)}
    yield _event({"type": "message_start", "message": start}, first)
    for index, block in enumerate(whole["content"]):
        yield from _block_events(index, block, say.piece)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": _message_usage(usage)}, usage)
    yield _event({"type": "message_stop"})


def _block_events(index: int, block: Mapping[str, Any], piece: int) -> Iterator[Frame]:
    is_text = block["type"] == "text"
    begun = {**block, "text": ""} if is_text else {**block, "input": {}}
    yield _event({"type": "content_block_start", "index": index, "content_block": begun})
    for part in _pieces(block["text"] if is_text else _arguments(block["input"]), piece):
        delta = {"type": "text_delta", "text": part} if is_text else {"type": "input_json_delta", "partial_json": part}
        yield _event({"type": "content_block_delta", "index": index, "delta": delta})
    yield _event({"type": "content_block_stop", "index": index})


def _event(data: Mapping[str, Any], tells: Usage | None = None) -> Frame:
    return Frame(f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode(), tells)


# --- Chat Completions -------------------------------------------------------------------------------------------

_FINISHES = {"end": "stop", "tools": "tool_calls", "length": "length", "refused": "content_filter"}


def _tool_calls(call: Call, say: Say) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{call.number}_{0 if say.same_id else at}",
            "type": "function",
            "function": {"name": name, "arguments": _arguments(given)},
        }
        for at, (name, given) in enumerate(say.uses)
    ]


def _completion(call: Call, say: Say) -> dict[str, Any]:
    message = {"role": "assistant", "content": say.text or None, "tool_calls": _tool_calls(call, say) or None}
    choice = {"index": 0, "message": message, "finish_reason": _FINISHES[say.stop], "logprobs": None}
    return {**_chunk(call, say), "object": "chat.completion", "choices": [choice], "usage": _chat_usage(call, say)}


def _chat_usage(call: Call, say: Say) -> dict[str, Any]:
    """This API counts what was cached among the tokens of the prompt."""
    usage = usage_of(call, say)
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
    }


def _chunk(call: Call, say: Say) -> dict[str, Any]:
    made = {"id": f"chatcmpl-{call.number}", "object": "chat.completion.chunk", "created": int(time.time())}
    return {**made, "model": say.model or call.model, "choices": []}


def _chunks(call: Call, say: Say) -> Iterator[Frame]:
    """As the API streams: what it costs comes last, and only to those who asked."""
    yield _choice(call, say, {"role": "assistant", "content": ""})
    for part in _pieces(say.text, say.piece):
        yield _choice(call, say, {"content": part})
    for index, one in enumerate(_tool_calls(call, say)):
        given = one["function"]["arguments"]
        named = {**one, "function": {**one["function"], "arguments": ""}}
        yield _choice(call, say, {"tool_calls": [{"index": index, **named}]})
        for part in _pieces(given, say.piece):
            yield _choice(call, say, {"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield _choice(call, say, {}, _FINISHES[say.stop])
    if (call.body.get("stream_options") or {}).get("include_usage"):
        yield _data({**_chunk(call, say), "usage": _chat_usage(call, say)}, usage_of(call, say))
    yield Frame(b"data: [DONE]\n\n")


def _choice(call: Call, say: Say, delta: Mapping[str, Any], finish: str | None = None) -> Frame:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return _data({**_chunk(call, say), "choices": [choice], "usage": None})


def _data(data: Mapping[str, Any], tells: Usage | None = None) -> Frame:
    return Frame(f"data: {json.dumps(data)}\n\n".encode(), tells)

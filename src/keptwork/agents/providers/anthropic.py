"""Claude by the Messages API, streamed through the official SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from keptwork.agents.conversation import Message, Request, Role, Stop
from keptwork.agents.providers.sdk import SdkProvider, key_headers
from keptwork.agents.providers.streamed_answer import Draft, Malformed

_STOPS = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.END,
    "tool_use": Stop.TOOLS,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "pause_turn": Stop.LENGTH,
    "refusal": Stop.REFUSED,
}


class Anthropic(SdkProvider):
    """A provider that calls `messages.create`."""

    name = "anthropic"

    def _client(self, sdk: Any, http: Any) -> Any:
        return sdk.AsyncAnthropic(
            api_key=self._key.value, base_url=self._base_url, max_retries=0, http_client=http, open_telemetry=False
        )

    async def _listen(self, client: Any, request: Request, draft: Draft) -> None:
        stream = await client.messages.create(**body(request), stream=True, extra_headers=key_headers(request))
        async with stream:
            draft.name(None, stream.response.headers.get("request-id"))
            stop: Stop | None = None
            async for event in stream:
                stop = _heard(event, draft, stop)


def _heard(event: Any, draft: Draft, stop: Stop | None) -> Stop | None:
    """Add one event to the draft. The stop reason comes before the end of the stream, but counts only at the end."""
    match event.type:
        case "message_start":
            draft.name(event.message.model)
            _count(draft, event.message.usage)
        case "content_block_start":
            _begin(draft, event.index, event.content_block)
        case "content_block_delta" if event.delta.type == "text_delta":
            draft.say(event.delta.text)
        case "content_block_delta" if event.delta.type == "input_json_delta":
            draft.use(event.index, piece=event.delta.partial_json)
        case "message_delta":
            _count(draft, event.usage)
            return _stop(event.delta.stop_reason)
        case "message_stop":
            draft.stop = stop
    return stop


def _begin(draft: Draft, index: Any, block: Any) -> None:
    """Add the start of a block. Thinking blocks are ignored."""
    if block.type == "text":
        draft.say(block.text)
    elif block.type == "tool_use":
        draft.use(index, block.id, block.name)


def _count(draft: Draft, usage: Any) -> None:
    draft.count(
        usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    )


def _stop(reason: Any) -> Stop:
    if reason not in _STOPS:
        raise Malformed("why the model stopped")
    return _STOPS[reason]


def body(request: Request) -> dict[str, Any]:
    """Return the request in the form of the API."""
    said: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "messages": list(_messages(request.messages)),
    }
    if request.system:
        said["system"] = request.system
    if request.offers:
        said["tools"] = [
            {"name": one.name, "description": one.description, "input_schema": dict(one.schema)}
            for one in request.offers
        ]
    return said


def _messages(messages: Iterable[Message]) -> Iterable[dict[str, Any]]:
    """Yield the messages. The results of tools in one turn form one message of the user."""
    for is_tool, several in groupby(messages, lambda message: message.role is Role.TOOL):
        if is_tool:
            yield {"role": "user", "content": [_result(message) for message in several]}
        else:
            yield from map(_message, several)


def _result(message: Message) -> Mapping[str, Any]:
    said = {"type": "tool_result", "tool_use_id": message.answers, "content": message.text}
    return {**said, "is_error": True} if message.failed else said


def _message(message: Message) -> dict[str, Any]:
    if not message.uses:
        return {"role": str(message.role), "content": message.text}
    text = [{"type": "text", "text": message.text}] if message.text else []
    uses = [{"type": "tool_use", "id": use.id, "name": use.name, "input": dict(use.arguments)} for use in message.uses]
    return {"role": str(message.role), "content": [*text, *uses]}

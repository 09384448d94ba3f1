"""OpenAI, or any server with the Chat Completions API, streamed through the official SDK."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from keptwork.agents.budget_rules import most_input_tokens
from keptwork.agents.conversation import Message, Request, Role, Stop, Usage
from keptwork.agents.providers.sdk import SdkProvider, key_headers
from keptwork.agents.providers.streamed_answer import Draft, Malformed

_STOPS = {
    "stop": Stop.END,
    "tool_calls": Stop.TOOLS,
    "function_call": Stop.TOOLS,
    "length": Stop.LENGTH,
    "content_filter": Stop.REFUSED,
}
_HOME = "openai.com"


class OpenAI(SdkProvider):
    """A provider that calls `chat.completions.create`."""

    name = "openai"

    def _client(self, sdk: Any, http: Any) -> Any:
        return sdk.AsyncOpenAI(api_key=self._key.value, base_url=self._base_url, max_retries=0, http_client=http)

    async def _listen(self, client: Any, request: Request, draft: Draft) -> None:
        home = (urlsplit(str(client.base_url)).hostname or "").endswith(_HOME)
        limit = {"max_completion_tokens" if home else "max_tokens": request.max_tokens}
        stream = await client.chat.completions.create(
            **body(request),
            **limit,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=key_headers(request),
        )
        async with stream:
            draft.name(None, stream.response.headers.get("x-request-id"))
            stop: Stop | None = None
            async for chunk in stream:
                stop = _heard(chunk, draft) or stop
        draft.stop = stop
        if stop is not None and draft.usage is None:
            # Some servers never report usage. Then the maximum is counted, since budgets rely on it.
            draft.usage = Usage(most_input_tokens(request), request.max_tokens)


def _heard(chunk: Any, draft: Draft) -> Stop | None:
    """Add one chunk to the draft. Return why the model stopped, once a chunk states it."""
    draft.name(chunk.model)
    if getattr(chunk, "usage", None) is not None:
        _count(draft, chunk.usage)
    stop: Stop | None = None
    for choice in chunk.choices or ():
        if choice.index == 0:
            stop = _piece(choice, draft) or stop
    return stop


def _piece(choice: Any, draft: Draft) -> Stop | None:
    delta = choice.delta
    if delta.content is not None:
        draft.say(delta.content)
    for call in delta.tool_calls or ():
        function = call.function
        draft.use(call.index, call.id, function and function.name, function and function.arguments)
    if getattr(delta, "refusal", None):
        return Stop.REFUSED
    if choice.finish_reason is None:
        return None
    if choice.finish_reason not in _STOPS:
        raise Malformed("why the model stopped")
    return _STOPS[choice.finish_reason]


def _count(draft: Draft, usage: Any) -> None:
    """Add the token counts. This API counts cached tokens as tokens of the prompt."""
    details = getattr(usage, "prompt_tokens_details", None)
    read, write = (getattr(details, name, None) or 0 for name in ("cached_tokens", "cache_write_tokens"))
    prompt = usage.prompt_tokens
    draft.count(max(0, prompt - read - write), usage.completion_tokens, read, write)


def body(request: Request) -> dict[str, Any]:
    """Return the request in the form of the API. The limit is not included, because its name differs between
    servers."""
    system = [{"role": "system", "content": request.system}] if request.system else []
    said: dict[str, Any] = {"model": request.model, "messages": [*system, *map(_message, request.messages)]}
    if request.offers:
        said["tools"] = list(_tools(request))
    return said


def _tools(request: Request) -> Iterable[dict[str, Any]]:
    for one in request.offers:
        function = {"name": one.name, "description": one.description, "parameters": dict(one.schema)}
        yield {"type": "function", "function": function}


def _message(message: Message) -> dict[str, Any]:
    if message.role is Role.TOOL:
        text = f"The tool failed: {message.text}" if message.failed else message.text
        return {"role": "tool", "tool_call_id": message.answers, "content": text}
    if not message.uses:
        return {"role": str(message.role), "content": message.text}
    uses = [
        {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": json.dumps(dict(use.arguments))}}
        for use in message.uses
    ]
    return {"role": str(message.role), "content": message.text or None, "tool_calls": uses}

"""A request that changes something, done once however often it is sent.

The key is the header `Idempotency-Key` or the field `request_id` of the body. The work, and the row that remembers its
answer, are written in one transaction: the same key and body is answered as the first time, byte for byte; another body
is `KeyReused`; one that is still at work is `RequestInFlight`. A request that failed has left nothing behind, and may
be sent again under its key. Without a key a request is simply done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, cast

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from detent.bounds import check_name
from detent.errors import BadInput, InvalidRequest
from detent.http.auth import authenticated
from detent.store import Store, Transaction

REPLAYED = {"Idempotency-Replayed": "true"}

Work = Callable[[Store], Awaitable[Any]]
"""What is done, by a store or inside a transaction; it awaits nothing but calls of what it is given."""


def example(**fields: Any) -> ConfigDict:
    """What a body is checked by, and how one looks: for the OpenAPI document."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [fields]})


class Asked(BaseModel):
    """What the body of every request that changes something has."""

    model_config = example(request_id="order-17")

    request_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="An idempotency key, instead of the header Idempotency-Key.",
    )


HEADER = "Idempotency-Key"
LONGEST = 500
PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST},
    "description": "The same key and body is answered as the first time, for an hour; another body is refused.",
}


class Once:
    """Does the work of one request at most once."""

    def __init__(self, request: Request, tenant_id: int) -> None:
        self._store: Store = request.app.state.store
        self._tenant_id = tenant_id
        self._given = _given(request)
        self._endpoint = f"{request.method} {request.scope['route'].path}"
        self._parameters = request.path_params

    async def __call__(self, asked: Asked, work: Work, status: int = 200) -> Response:
        """The answer: what the work returned as JSON, or what it returned the first time."""
        key = self._key(asked)
        if key is None:
            return _answer(status, _text(await work(self._store)))
        request_hash = fingerprint(self._parameters, asked)

        async def remembered(transaction: Transaction) -> tuple[str, bool]:
            seen = await transaction.recall(self._tenant_id, self._endpoint, key, request_hash)
            if seen is not None and seen.response is not None:
                return seen.response, True
            # A transaction has all that use-cases ask of a store.
            response = json.dumps([status, _text(await work(cast(Store, transaction)))])
            await transaction.answer(self._tenant_id, self._endpoint, key, response)
            return response, False

        response, replayed = await self._store.atomically(remembered)
        status, text = json.loads(response)
        return _answer(status, text, replayed)

    def _key(self, asked: Asked) -> str | None:
        if self._given is not None and asked.request_id not in (None, self._given):
            raise BadInput(what="Idempotency-Key and request_id differ; send one of them")
        key = self._given or asked.request_id
        if key is not None:
            check_name("key", key)
        return key


def _given(request: Request) -> str | None:
    """The header, looked up by hand: the framework takes longer over one than over all the rest of a request's head."""
    given = request.headers.get(HEADER)
    if given is not None and not 0 < len(given) <= LONGEST:
        raise InvalidRequest(problems=[(f"header.{HEADER}", f"It must have 1 to {LONGEST} characters")])
    return given


async def once(request: Request) -> Once:
    """The dependency of every route that changes something."""
    return Once(request, (await authenticated(request)).tenant_id)


Does = Annotated[Once, Depends(once)]
"""How a route does its work: `return await does(asked, work)`."""


def fingerprint(parameters: Mapping[str, Any], asked: Asked) -> str:
    """What makes two requests to one address the same: their path and body, but not the key itself."""
    body = asked.model_dump(exclude={"request_id"})
    whole = json.dumps([dict(parameters), body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(whole.encode()).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _answer(status: int, body: str, replayed: bool = False) -> Response:
    return Response(body.encode(), status, REPLAYED if replayed else None, "application/json")

"""A request that changes something, done once however often it is sent.

The key is the header `Idempotency-Key` or the field `request_id` of the body. The work, and the row that remembers its
answer, are written in one transaction: the same key and body is answered as the first time, byte for byte; another body
is `KeyReused`; one that is still at work is `RequestInFlight`. A request that failed has left nothing behind, and may
be sent again under its key. Without a key a request is simply done.

What is remembered rests in the database, so a secret is never in it: whoever asks again is told `null` in its place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from keptwork.bounds import check_name
from keptwork.errors import BadInput, FlowBusy, InvalidRequest
from keptwork.http.auth import authenticated
from keptwork.http.pages import Text
from keptwork.http.second_lock import of_tenant
from keptwork.store import Store, Transaction

TRIES = 50
API = "/api"
REPLAYED = {"Idempotency-Replayed": "true"}

T = TypeVar("T")

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


class Reason(Asked):
    """Why something is done."""

    model_config = example(reason="the disk is full")

    reason: Text | None = Field(default=None, max_length=1_000, description="Why; it goes into the event log.")


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

    def __init__(self, request: Request, tenant_id: int, given: str | None) -> None:
        self._store = of_tenant(request.app.state, tenant_id)
        self._tenant_id = tenant_id
        self._given = given
        self._endpoint = f"{request.method} {_address(request.scope['route'].path)}"
        self._parameters = request.path_params

    async def __call__(self, asked: Asked, work: Work, status: int = 200, secret: str | None = None) -> Response:
        """The answer: what the work returned as JSON, or what it returned the first time. The field that is secret is
        told this once, and remembered as null. The answer or the refusal waits for the standbys, as
        `Store.acknowledging` says."""
        async with self._store.acknowledging():
            return await self._once(asked, work, status, secret)

    async def _once(self, asked: Asked, work: Work, status: int, secret: str | None) -> Response:
        key = self.key(asked)
        if key is None:
            return _answer(status, _text(await work(self._store)))
        shown: list[str] = []

        async def done(transaction: Transaction) -> str:
            # A transaction has all that use-cases ask of a store.
            value = await work(cast(Store, transaction))
            shown[:] = [_text(value)]  # the last time counts, where it is done again from the start
            return json.dumps([status, _text(value if secret is None else {**value, secret: None})])

        status, text, replayed = await self._remembered(key, fingerprint(self._parameters, asked), done)
        return _answer(status, text if replayed else shown[0], replayed)

    async def at_length(self, asked: Asked, work: Work, status: int = 200) -> Response:
        """The same for work of many transactions, which must be harmless to do twice: it is remembered when it has
        ended, and of several who do it at the same time all are told what the first one was."""
        async with self._store.acknowledging():
            return await self._at_length(asked, work, status)

    async def _at_length(self, asked: Asked, work: Work, status: int) -> Response:
        key = self.key(asked)
        if key is None:
            return _answer(status, _text(await work(self._store)))
        request_hash = fingerprint(self._parameters, asked)
        try:
            return _answer(*await self._remembered(key, request_hash, _not_yet))
        except _NotYet:
            response = json.dumps([status, _text(await work(self._store))])

        async def ended(_: Transaction) -> str:
            return response

        return _answer(*await self._remembered(key, request_hash, ended))

    def unremembered(self, asked: Asked, value: Any) -> Response:
        """The answer to a request that changes nothing: done again it is the same, and a key that only reads leaves
        nothing behind."""
        self.key(asked)
        return _answer(200, _text(value))

    async def _remembered(
        self, key: str, request_hash: str, done: Callable[[Transaction], Awaitable[str]]
    ) -> tuple[int, str, bool]:
        """Status and text of the answer, and whether it is an earlier one."""

        async def work(transaction: Transaction) -> tuple[str, bool]:
            seen = await transaction.recall(self._tenant_id, self._endpoint, key, request_hash)
            if seen is not None and seen.response is not None:
                return seen.response, True
            response = await done(transaction)
            await transaction.answer(self._tenant_id, self._endpoint, key, response)
            return response, False

        response, replayed = await self._surely(work)
        status, text = json.loads(response)
        return status, text, replayed

    async def _surely(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """A flow that workers moved meanwhile is looked at again, together with the row."""
        for _ in range(TRIES):
            with suppress(FlowBusy):
                return await self._store.atomically(work)
        raise FlowBusy(tries=TRIES)

    def key(self, asked: Asked) -> str | None:
        """The key of the request, if it has one."""
        if self._given is not None and asked.request_id not in (None, self._given):
            raise BadInput(what="Idempotency-Key and request_id differ; send one of them")
        key = self._given or asked.request_id
        if key is not None:
            check_name("key", key)
        return key


class _NotYet(Exception):
    """Nothing is remembered of a request."""


async def _not_yet(_: Transaction) -> str:
    raise _NotYet


def _address(path: str) -> str:
    """Where a route is mounted twice, a request to either is the same."""
    return path if path.startswith(API) else f"{API}{path}"


async def key_given(request: Request) -> str | None:
    """The header, looked up by hand: the framework takes longer over one than over all the rest of a request's head."""
    given = request.headers.get(HEADER)
    if given is not None and not 0 < len(given) <= LONGEST:
        raise InvalidRequest(problems=[(f"header.{HEADER}", f"It must have 1 to {LONGEST} characters")])
    return given


KeyGiven = Annotated[str | None, Depends(key_given)]
"""The key alone, for a route that remembers by itself."""


async def once(request: Request) -> Once:
    """The dependency of every route that changes something."""
    return Once(request, (await authenticated(request)).tenant_id, await key_given(request))


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

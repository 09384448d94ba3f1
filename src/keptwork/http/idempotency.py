"""Run a request that changes something once, however often it is sent.

The key is the header `Idempotency-Key` or the field `request_id` of the body. The work, and a row with its response,
are written in one transaction. The same key and body returns the first response, byte for byte. A different body raises
`KeyReused`; a request that is still running raises `RequestInFlight`. A failed request stores nothing, and can be
repeated with its key. Requests without a key run every time.

Responses are stored in the database without secrets: a repeated request gets `null` instead.
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

from keptwork.core.validation import check_name
from keptwork.errors import BadInput, FlowBusy, InvalidRequest
from keptwork.http.auth import authenticated, of_tenant
from keptwork.http.dependencies import Text
from keptwork.store import Store, Transaction

TRIES = 50
API = "/api"
REPLAYED = {"Idempotency-Replayed": "true"}

T = TypeVar("T")

Work = Callable[[Store], Awaitable[Any]]
"""The work of a request, for a store or inside a transaction. It awaits only calls of its argument."""


def example(**fields: Any) -> ConfigDict:
    """Return the configuration of a body: strict validation, and an example for the OpenAPI document."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [fields]})


class Asked(BaseModel):
    """The fields of every request that changes something."""

    model_config = example(request_id="order-17")

    request_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="Idempotency key, instead of the header Idempotency-Key.",
    )


class Reason(Asked):
    """A request with a reason."""

    model_config = example(reason="the disk is full")

    reason: Text | None = Field(default=None, max_length=1_000, description="Reason, recorded in the event log.")


HEADER = "Idempotency-Key"
LONGEST = 500
PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST},
    "description": (
        "Idempotency key. For an hour, the same key and body returns the first response. A different body is rejected."
    ),
}


class Once:
    """One request, whose work runs at most once."""

    def __init__(self, request: Request, tenant_id: int, given: str | None) -> None:
        self._store = of_tenant(request.app.state, tenant_id)
        self._tenant_id = tenant_id
        self._given = given
        self._endpoint = f"{request.method} {_address(request.scope['route'].path)}"
        self._parameters = request.path_params

    async def __call__(self, asked: Asked, work: Work, status: int = 200, secret: str | None = None) -> Response:
        """Run the work and return its response, or return the stored response.

        The field `secret` is returned once and stored as null. The response or rejection waits for the standbys, as
        `Store.acknowledging` describes.
        """
        async with self._store.acknowledging():
            return await self._once(asked, work, status, secret)

    async def _once(self, asked: Asked, work: Work, status: int, secret: str | None) -> Response:
        key = self.key(asked)
        if key is None:
            return _answer(status, _text(await work(self._store)))
        shown: list[str] = []

        async def done(transaction: Transaction) -> str:
            # A transaction has every operation that use cases call on a store.
            value = await work(cast(Store, transaction))
            shown[:] = [_text(value)]  # a retried transaction overwrites this
            return json.dumps([status, _text(value if secret is None else {**value, secret: None})])

        status, text, replayed = await self._remembered(key, fingerprint(self._parameters, asked), done)
        return _answer(status, text if replayed else shown[0], replayed)

    async def at_length(self, asked: Asked, work: Work, status: int = 200) -> Response:
        """Do the same for work with many transactions, which must be safe to repeat.

        The response is stored when the work has ended. Concurrent requests all return the first response.
        """
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
        """Return the response of a request that changes nothing. It is not stored, because it can be repeated."""
        self.key(asked)
        return _answer(200, _text(value))

    async def _remembered(
        self, key: str, request_hash: str, done: Callable[[Transaction], Awaitable[str]]
    ) -> tuple[int, str, bool]:
        """Return the status and text of the response, and whether it is a stored one."""

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
        """Run the work in a transaction, and retry it if workers changed the flow meanwhile."""
        for _ in range(TRIES):
            with suppress(FlowBusy):
                return await self._store.atomically(work)
        raise FlowBusy(tries=TRIES)

    def key(self, asked: Asked) -> str | None:
        """Return the key of the request, or None."""
        if self._given is not None and asked.request_id not in (None, self._given):
            raise BadInput(what="Idempotency-Key and request_id differ; send one of them")
        key = self._given or asked.request_id
        if key is not None:
            check_name("key", key)
        return key


class _NotYet(Exception):
    """No response is stored for a request."""


async def _not_yet(_: Transaction) -> str:
    raise _NotYet


def _address(path: str) -> str:
    """Return the path under /api, so that both paths of a route count as one."""
    return path if path.startswith(API) else f"{API}{path}"


async def key_given(request: Request) -> str | None:
    """Return the header. It is read directly, because a header parameter of the framework is slow."""
    given = request.headers.get(HEADER)
    if given is not None and not 0 < len(given) <= LONGEST:
        raise InvalidRequest(problems=[(f"header.{HEADER}", f"It must have 1 to {LONGEST} characters")])
    return given


KeyGiven = Annotated[str | None, Depends(key_given)]
"""The key only, for a route that stores its own response."""


async def once(request: Request) -> Once:
    """Return the idempotency handler, the dependency of every route that changes something."""
    return Once(request, (await authenticated(request)).tenant_id, await key_given(request))


Does = Annotated[Once, Depends(once)]
"""The dependency with which a route does its work: `return await does(asked, work)`."""


def fingerprint(parameters: Mapping[str, Any], asked: Asked) -> str:
    """Return a hash of what identifies a repeated request: its path parameters and body, without the key."""
    body = asked.model_dump(exclude={"request_id"})
    whole = json.dumps([dict(parameters), body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(whole.encode()).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _answer(status: int, body: str, replayed: bool = False) -> Response:
    return Response(body.encode(), status, REPLAYED if replayed else None, "application/json")

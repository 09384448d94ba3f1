"""Routes of API keys: create, list, show, rotate, and revoke.

A secret is in one response and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.access import api_keys as service
from keptwork.access import tenants
from keptwork.access.scopes import KNOWN_SCOPES, MOST_SCOPES
from keptwork.core.validation import LONGEST_KEY
from keptwork.http.auth import Administers, Reads
from keptwork.http.dependencies import After, Db, Most, Text, answer, fails, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.store import Store

router = APIRouter(prefix="/api/keys", tags=["keys"])
mine = APIRouter(prefix="/api/whoami", tags=["keys"])

LIST = "keys"

Life = Annotated[Text, Field(min_length=1, max_length=100)]


class Key(BaseModel):
    """A key without its secret: its scopes, state, and times."""

    id: str
    name: str
    scopes: list[str]
    state: str
    created_by: str | None
    revoked_by: str | None
    replaced_by: str | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class Keys(BaseModel):
    """A page of keys, and the cursor of the next page."""

    keys: list[Key]
    next: str | None


class MadeKey(BaseModel):
    """A new key. Its secret is returned only once; a repeated request returns null."""

    key: Key
    secret: str | None


class ShownKey(BaseModel):
    """A key."""

    key: Key


class NewKey(Asked):
    """A key to create."""

    model_config = example(name="ci", scopes=["read", "write"], expires="90d")

    name: Text = Field(
        min_length=1, max_length=LONGEST_KEY, description="Name of the key, such as its user or program."
    )
    scopes: list[str] = Field(min_length=1, max_length=MOST_SCOPES, description=f"Scopes of the key: {KNOWN_SCOPES}.")
    expires: Life | None = Field(default=service.USUAL_LIFE, description="Lifetime of the key; null for no expiry.")


class Rotate(Asked):
    """A request to replace a key."""

    model_config = example(overlap="1h")

    overlap: Life = Field(default=service.USUAL_OVERLAP, description="Time that the old key stays valid. Maximum: 30d.")


class WhoAmI(BaseModel):
    """The tenant, actor, and scopes of a key."""

    tenant: str
    actor: str
    scopes: list[str]


@router.post("", status_code=201, response_model=MadeKey, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def create(asked: NewKey, caller: Administers, does: Does) -> Response:
    """Create a key of the tenant. Its secret is in this response and nowhere else: a repeated request with the same
    idempotency key returns the key, with null as its secret."""

    async def work(store: Store) -> dict[str, Any]:
        made = await service.create(
            store, caller.tenant_id, asked.name, asked.scopes, expires=asked.expires, by=caller.actor
        )
        return _made(made, await store.now())

    return await does(asked, work, status=201, secret="secret")  # noqa: S106 - the name of the field


@router.get("", response_model=Keys, responses=fails(errors.BadCursor))
async def listing(
    caller: Administers,
    store: Db,
    ended: Annotated[bool, Query(description="Include revoked and expired keys.")] = False,
    after: After = None,
    limit: Most = 50,
) -> Response:
    """List keys, newest first, without secrets and their hashes."""
    page = await service.page(store, caller.tenant_id, ended=ended, after=opened(LIST, after), limit=limit)
    now = await store.now()
    return answer({"keys": [service.as_json(row, now) for row in page.keys], "next": sealed(LIST, page.next)})


@router.get("/{id}", response_model=ShownKey, responses=fails(errors.NotFound))
async def show(id: str, caller: Administers, store: Db) -> Response:
    """Show one key: its scopes, expiry, and last use."""
    return answer({"key": service.as_json(await service.find(store, caller.tenant_id, id), await store.now())})


@router.post(
    "/{id}/revoke",
    response_model=ShownKey,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def revoke(id: str, caller: Administers, does: Does, asked: Annotated[Asked | None, Body()] = None) -> Response:
    """Revoke a key. Within 5 s, every server rejects it. You can repeat the request."""

    async def work(store: Store) -> dict[str, Any]:
        row = await service.revoke(store, caller.tenant_id, id, by=caller.actor)
        return {"key": service.as_json(row, await store.now())}

    return await does(asked or Asked(), work)


@router.post(
    "/{id}/rotate",
    status_code=201,
    response_model=MadeKey,
    responses=fails(errors.NotFound, errors.KeyEnded, errors.KeyReused, errors.RequestInFlight),
)
async def rotate(id: str, caller: Administers, does: Does, asked: Annotated[Rotate | None, Body()] = None) -> Response:
    """Replace a key with a new one that has the same name, scopes, and lifetime. The old key stays valid for the
    overlap. The secret is returned only once."""
    how = asked or Rotate()

    async def work(store: Store) -> dict[str, Any]:
        made = await service.rotate(store, caller.tenant_id, id, overlap=how.overlap, by=caller.actor)
        return _made(made, await store.now())

    return await does(how, work, status=201, secret="secret")  # noqa: S106 - the name of the field


@mine.get("", response_model=WhoAmI, responses=fails())
async def whoami(caller: Reads, store: Db) -> Response:
    """Show the tenant, the actor name, and the scopes of this key."""
    name = await tenants.name_of(store, caller.tenant_id)
    return answer({"tenant": name, "actor": caller.actor, "scopes": sorted(caller.scopes)})


def _made(made: service.Made, now: int) -> dict[str, Any]:
    return {"key": service.as_json(made.row, now), "secret": made.secret.value}

"""Keys to this API: made, listed, rotated, revoked. A secret is in one answer, and nowhere else."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.api_key import KNOWN_SCOPES, MOST_SCOPES
from keptwork.bounds import LONGEST_KEY
from keptwork.http.auth import Administers, Reads
from keptwork.http.cursors import opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.pages import After, Db, Most, Text, answer, fails
from keptwork.service import keys as service
from keptwork.service import tenants
from keptwork.store import Store

router = APIRouter(prefix="/api/keys", tags=["keys"])
mine = APIRouter(prefix="/api/whoami", tags=["keys"])

LIST = "keys"

Life = Annotated[Text, Field(min_length=1, max_length=100)]


class Key(BaseModel):
    """A key, without its secret: what it is for, and until when."""

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
    """Some keys, and where to go on if there are more."""

    keys: list[Key]
    next: str | None


class MadeKey(BaseModel):
    """A new key. Its secret is told this once; who sends the same request again is told null."""

    key: Key
    secret: str | None


class ShownKey(BaseModel):
    """One key."""

    key: Key


class NewKey(Asked):
    """A key to be made."""

    model_config = example(name="ci", scopes=["read", "write"], expires="90d")

    name: Text = Field(min_length=1, max_length=LONGEST_KEY, description="Who or what it is for.")
    scopes: list[str] = Field(min_length=1, max_length=MOST_SCOPES, description=f"Of {KNOWN_SCOPES}.")
    expires: Life | None = Field(default=service.USUAL_LIFE, description="How long it lives; null is for ever.")


class Rotate(Asked):
    """How a key is replaced."""

    model_config = example(overlap="1h")

    overlap: Life = Field(default=service.USUAL_OVERLAP, description="How long the old one lives on; at most 30d.")


class WhoAmI(BaseModel):
    """Whom a key stands for."""

    tenant: str
    actor: str
    scopes: list[str]


@router.post("", status_code=201, response_model=MadeKey, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def create(asked: NewKey, caller: Administers, does: Does) -> Response:
    """Makes a key of the tenant. Its secret is in this answer and nowhere else: under an idempotency key, the same
    request again tells which key was made, and null in the place of the secret."""

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
    ended: Annotated[bool, Query(description="Also those that were revoked or have expired.")] = False,
    after: After = None,
    limit: Most = 50,
) -> Response:
    """The keys of the tenant, the newest first; neither a secret nor its hash is shown."""
    page = await service.page(store, caller.tenant_id, ended=ended, after=opened(LIST, after), limit=limit)
    now = await store.now()
    return answer({"keys": [service.as_json(row, now) for row in page.keys], "next": sealed(LIST, page.next)})


@router.get("/{id}", response_model=ShownKey, responses=fails(errors.NotFound))
async def show(id: str, caller: Administers, store: Db) -> Response:
    """One key: what it is for, until when, and when it was last used."""
    return answer({"key": service.as_json(await service.find(store, caller.tenant_id, id), await store.now())})


@router.post(
    "/{id}/revoke",
    response_model=ShownKey,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def revoke(id: str, caller: Administers, does: Does, asked: Annotated[Asked | None, Body()] = None) -> Response:
    """Revokes a key: within five seconds no server takes it any more. Twice is as good as once."""

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
    """Makes a new key in the place of an old one, of the same name, scopes and life; the old one lives on for the
    overlap. The secret is told as by the making of a key."""
    how = asked or Rotate()

    async def work(store: Store) -> dict[str, Any]:
        made = await service.rotate(store, caller.tenant_id, id, overlap=how.overlap, by=caller.actor)
        return _made(made, await store.now())

    return await does(how, work, status=201, secret="secret")  # noqa: S106 - the name of the field


@mine.get("", response_model=WhoAmI, responses=fails())
async def whoami(caller: Reads, store: Db) -> Response:
    """The tenant this key belongs to, how the event log names it, and what it may be used for."""
    name = await tenants.name_of(store, caller.tenant_id)
    return answer({"tenant": name, "actor": caller.actor, "scopes": sorted(caller.scopes)})


def _made(made: service.Made, now: int) -> dict[str, Any]:
    return {"key": service.as_json(made.row, now), "secret": made.secret.value}

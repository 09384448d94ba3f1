"""Who asks: the key in the Authorization header, the tenant and the scopes it stands for.

Keys themselves are kept by the service; here is only the seam. A route says which scope it needs:
`caller: Annotated[Principal, Depends(requires("read"))]`, or one of the names below.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import Depends, Request

from detent.errors import MissingScope, Unauthenticated
from detent.service.keys import KeyRing
from detent.store import Store

LONGEST_TOKEN = 500


class Principal(Protocol):
    """Whom a key stands for."""

    @property
    def tenant_id(self) -> int: ...

    @property
    def scopes(self) -> frozenset[str]: ...

    @property
    def actor(self) -> str:
        """How the event log names them."""
        ...


Authenticate = Callable[[str], Awaitable[Principal | None]]
"""Who a token belongs to; none if it is not known, over, or revoked."""


class Caller(NamedTuple):
    """A principal that no kept key stands for."""

    tenant_id: int
    scopes: frozenset[str]
    actor: str


def kept_keys(store: Store) -> Authenticate:
    """Those of the database, remembered for a moment."""
    return KeyRing(store).authenticate


def one_token(token: str, caller: Caller) -> Authenticate:
    """One token that is good for everything, for a developer's own machine."""

    async def authenticate(given: str) -> Principal | None:
        return caller if hmac.compare_digest(given.encode(), token.encode()) else None

    return authenticate


BEARER = {"type": "http", "scheme": "bearer", "description": "A key: `Authorization: Bearer dk_…`"}


async def authenticated(request: Request) -> Principal:
    """Who asks; nobody we know is `Unauthenticated`. Asked more than once in a request, it answers from memory."""
    state = request.scope["state"]
    if "principal" not in state:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.isascii() or not 0 < len(token) <= LONGEST_TOKEN:
            raise Unauthenticated
        state["principal"], state["token"] = await still_good(request, token), token
    found: Principal = state["principal"]
    return found


async def still_good(request: Request, token: str) -> Principal:
    """Whom a token stands for at this moment."""
    found: Principal | None = await request.app.state.authenticate(token)
    if found is None:
        raise Unauthenticated
    return found


def requires(scope: str) -> Callable[..., Awaitable[Principal]]:
    """The dependency of a route that needs this scope; `admin` has all of them."""

    # Async like every dependency here: the framework would send others to a thread. And with no dependency of its own,
    # for the framework takes its time over each.
    async def check(request: Request) -> Principal:
        caller = await authenticated(request)
        if scope not in caller.scopes and "admin" not in caller.scopes:
            raise MissingScope(scope=scope, scopes=", ".join(sorted(caller.scopes)) or "none")
        return caller

    SCOPE_OF[check] = scope
    return check


SCOPE_OF: dict[Callable[..., Any], str] = {}
"""Which scope each of these dependencies asks for, to be told in the documentation."""


Reads = Annotated[Principal, Depends(requires("read"))]
Writes = Annotated[Principal, Depends(requires("write"))]
Approves = Annotated[Principal, Depends(requires("approve"))]
Supervises = Annotated[Principal, Depends(requires("supervise"))]
Administers = Annotated[Principal, Depends(requires("admin"))]

"""Who asks: the key in the Authorization header, the tenant and the scopes it stands for.

Keys themselves are kept by the service; here is only the seam. A route says which scope it needs:
`caller: Annotated[Principal, Depends(requires("read"))]`, or one of the names below.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

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


_bearer = HTTPBearer(auto_error=False, description="A key: `Authorization: Bearer dk_…`")


async def authenticated(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> Principal:
    """Who asks; nobody we know is `Unauthenticated`."""
    if given is None or not given.credentials.isascii() or len(given.credentials) > LONGEST_TOKEN:
        raise Unauthenticated
    found = await still_good(request, given.credentials)
    request.scope["state"]["token"] = given.credentials
    return found


async def still_good(request: Request, token: str) -> Principal:
    """Whom a token stands for at this moment."""
    found: Principal | None = await request.app.state.authenticate(token)
    if found is None:
        raise Unauthenticated
    return found


def may(caller: Principal, scope: str) -> bool:
    """Whether a key has a scope; `admin` has all of them."""
    return scope in caller.scopes or "admin" in caller.scopes


def insist(caller: Principal, scope: str) -> None:
    """A key without the scope is `MissingScope`."""
    if not may(caller, scope):
        raise MissingScope(scope=scope, scopes=", ".join(sorted(caller.scopes)) or "none")


def requires(scope: str) -> Callable[..., Awaitable[Principal]]:
    """The dependency of a route that needs this scope."""

    # Async like every dependency here: the framework would send others to a thread.
    async def check(caller: Annotated[Principal, Depends(authenticated)]) -> Principal:
        insist(caller, scope)
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

"""Who asks: the key in the Authorization header, the tenant and the scopes it stands for.

Keys themselves are kept by the service; here is only the seam. A route says which scope it needs:
`caller: Annotated[Principal, Depends(requires("read"))]`, or one of the names below.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import Depends, Request

from keptwork.api_key import Scope, answers_somebody, approver
from keptwork.errors import MissingScope, Unauthenticated
from keptwork.service.bulk import MOST_AT_ONCE
from keptwork.service.keys import KeyRing
from keptwork.store import Store


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


BEARER = {"type": "http", "scheme": "bearer", "description": "A key: `Authorization: Bearer kw_…`"}


async def authenticated(request: Request) -> Principal:
    """Who asks, as the gate has found out; nobody we know is `Unauthenticated`. It may be asked again and again."""
    state = request.scope["state"]
    if "principal" not in state:
        raise state.get("refusal", Unauthenticated())
    found: Principal = state["principal"]
    return found


async def still_good(request: Request, token: str) -> Principal:
    """Whom a token stands for at this moment."""
    found: Principal | None = await request.app.state.authenticate(token)
    if found is None:
        raise Unauthenticated
    return found


async def lasting(request: Request) -> None:
    """A request that waits for long and does little is a stream, whatever it gives: it takes the place of one."""
    await authenticated(request)
    request.scope["state"]["visit"].stay()


def may(caller: Principal, scope: str) -> bool:
    """Whether a key has a scope; `admin` has all of them."""
    return scope in caller.scopes or "admin" in caller.scopes


def insist(caller: Principal, scope: str) -> None:
    """A key without the scope is `MissingScope`."""
    if not may(caller, scope):
        raise MissingScope(scope=scope, scopes=", ".join(sorted(caller.scopes)) or "none")


def insist_answerer(caller: Principal, who: str | None) -> None:
    """A key that may not answer what is asked of them, or of anyone, is `MissingScope`."""
    insist(caller, approver(who))


async def answers(request: Request) -> Principal:
    """The dependency of routes that answer: for somebody or for anyone, which the question will say."""
    caller = await authenticated(request)
    if not answers_somebody(caller.scopes):
        insist(caller, Scope.APPROVE)
    return caller


def requires(scope: str, jobs: int = 0) -> Callable[..., Awaitable[Principal]]:
    """The dependency of a route that needs this scope; `admin` has all of them. A route that makes jobs, about so many,
    is refused where too many wait."""

    # Async like every dependency here: the framework would send others to a thread. And with no dependency of its own,
    # for the framework takes its time over each.
    async def check(request: Request) -> Principal:
        caller = await authenticated(request)
        insist(caller, scope)
        return caller

    async def check_room(request: Request) -> Principal:
        caller = await check(request)
        most = request.scope["state"]["visit"].allowance.max_queued
        await request.app.state.room.take(caller.tenant_id, most, jobs)
        return caller

    found = check_room if jobs else check
    SCOPE_OF[found] = scope
    return found


SCOPE_OF: dict[Callable[..., Any], str] = {answers: Scope.APPROVE}
"""Which scope each of these dependencies asks for, to be told in the documentation."""


Reads = Annotated[Principal, Depends(requires("read"))]
Writes = Annotated[Principal, Depends(requires("write"))]
Adds = Annotated[Principal, Depends(requires("write", jobs=1))]
"""Writes, and makes a job: of a tenant that has too many waiting it is refused."""
AddsMany = Annotated[Principal, Depends(requires("write", jobs=MOST_AT_ONCE))]
Approves = Annotated[Principal, Depends(answers)]
Supervises = Annotated[Principal, Depends(requires("supervise"))]
Administers = Annotated[Principal, Depends(requires("admin"))]

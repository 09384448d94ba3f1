"""Authentication and authorization: the key in the Authorization header, its tenant, and its scopes.

The service stores the keys; this module connects them to the routes. A route declares the scope that it needs: `caller:
Annotated[Principal, Depends(requires("read"))]`, or one of the names below.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from fastapi import Depends, Request
from starlette.datastructures import State

from keptwork.access.api_keys import KeyRing
from keptwork.access.scopes import Scope, answers_somebody, approver
from keptwork.errors import BadInput, MissingScope, Unauthenticated
from keptwork.jobs.commands_bulk import MOST_AT_ONCE
from keptwork.store import Store


class Principal(Protocol):
    """The identity that a key authenticates."""

    @property
    def tenant_id(self) -> int: ...

    @property
    def scopes(self) -> frozenset[str]: ...

    @property
    def actor(self) -> str:
        """The name in the event log."""
        ...


Authenticate = Callable[[str], Awaitable[Principal | None]]
"""Returns the principal of a token, or None if the token is unknown, expired, or revoked."""


class Caller(NamedTuple):
    """A principal without a stored key."""

    tenant_id: int
    scopes: frozenset[str]
    actor: str


def kept_keys(store: Store) -> Authenticate:
    """Return authentication by the keys in the database, which are cached briefly."""
    return KeyRing(store).authenticate


def one_token(token: str, caller: Caller) -> Authenticate:
    """Return authentication by a single token, for development on one machine."""

    async def authenticate(given: str) -> Principal | None:
        return caller if hmac.compare_digest(given.encode(), token.encode()) else None

    return authenticate


BEARER = {"type": "http", "scheme": "bearer", "description": "A key: `Authorization: Bearer kw_…`"}


async def authenticated(request: Request) -> Principal:
    """Return the principal that the gate found, or raise `Unauthenticated`. Repeated calls are free."""
    state = request.scope["state"]
    if "principal" not in state:
        raise state.get("refusal", Unauthenticated())
    found: Principal = state["principal"]
    return found


async def still_good(request: Request, token: str) -> Principal:
    """Return the current principal of a token, or raise `Unauthenticated`."""
    found: Principal | None = await request.app.state.authenticate(token)
    if found is None:
        raise Unauthenticated
    return found


async def lasting(request: Request) -> None:
    """Count a request that waits long and does little as a stream."""
    await authenticated(request)
    request.scope["state"]["visit"].stay()


def may(caller: Principal, scope: str) -> bool:
    """Return whether a key has a scope; `admin` includes all scopes."""
    return scope in caller.scopes or "admin" in caller.scopes


def insist(caller: Principal, scope: str) -> None:
    """Raise `MissingScope` if a key does not have a scope."""
    if not may(caller, scope):
        raise MissingScope(scope=scope, scopes=", ".join(sorted(caller.scopes)) or "none")


def insist_answerer(caller: Principal, who: str | None) -> None:
    """Raise `MissingScope` if a key cannot decide approvals for `who`, or for anyone if `who` is None."""
    insist(caller, approver(who))


async def answers(request: Request) -> Principal:
    """Return the caller of a route that decides approvals. The approval itself determines the exact scope."""
    caller = await authenticated(request)
    if not answers_somebody(caller.scopes):
        insist(caller, Scope.APPROVE)
    return caller


def requires(scope: str, jobs: int = 0) -> Callable[..., Awaitable[Principal]]:
    """Return the dependency of a route that needs a scope; `admin` includes all scopes.

    A route that creates about `jobs` jobs rejects requests while too many jobs are queued.
    """

    # These are async, because the framework runs other dependencies in a thread. They have no dependencies of their
    # own, because the framework spends time on each.
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
"""The scope that each of these dependencies requires, for the documentation."""


Reads = Annotated[Principal, Depends(requires("read"))]
Writes = Annotated[Principal, Depends(requires("write"))]
Adds = Annotated[Principal, Depends(requires("write", jobs=1))]
"""Writes that create a job: rejected if the tenant has too many queued jobs."""
AddsMany = Annotated[Principal, Depends(requires("write", jobs=MOST_AT_ONCE))]
Approves = Annotated[Principal, Depends(answers)]
Supervises = Annotated[Principal, Depends(requires("supervise"))]
Administers = Annotated[Principal, Depends(requires("admin"))]


# Row security: on PostgreSQL, a request uses sessions that see only the rows of its tenant.
#
# It is a second protection: every query names its tenant, and if a route forgets to, the database still shows no rows
# of other tenants. Row security uses the role `keptwork_app`, which migrations create if they can. Without the role,
# only the queries protect, and the log reports it. `keptwork migrate --guards` grants the required rights to a role
# that was created later.


logger = logging.getLogger("keptwork.http")

HOW = (
    "an administrator runs: CREATE ROLE keptwork_app NOLOGIN; GRANT keptwork_app TO the owner of the tables; "
    "then the owner runs: keptwork migrate --guards"
)


async def narrows(store: Store, wanted: Literal["auto", "require", "off"]) -> bool:
    """Return whether requests use row security. Raise an error if it is required and unavailable."""
    lacking = None if wanted == "off" else await store.cannot_narrow()
    if lacking is None:
        return wanted != "off"
    if wanted == "require":
        raise BadInput(what=f"row_security is required, and cannot be had: {lacking}; {HOW}")
    logger.warning("requests are not narrowed to their tenants by the database: %s; %s", lacking, HOW)
    return False


def of_tenant(state: State, tenant_id: int) -> Store:
    """Return the server's database, limited to this tenant if row security is in use."""
    store: Store = state.store
    return store.narrowed(tenant_id) if state.narrows else store

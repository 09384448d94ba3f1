"""Tenants: whose work it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keptwork import allowance
from keptwork.bounds import check_name
from keptwork.errors import BadInput
from keptwork.moments import rfc3339
from keptwork.service.acknowledged import acknowledged
from keptwork.store import Store, Transaction
from keptwork.store.protocol import Reader
from keptwork.store.records import Tenant


async def listing(store: Store) -> list[Tenant]:
    """Every tenant, in the order they were made."""
    return await store.tenants()


async def name_of(store: Store, id: int) -> str:
    """What a tenant is called."""
    return next(tenant.name for tenant in await store.tenants() if tenant.id == id)


@acknowledged
async def add(store: Store, name: str) -> Tenant:
    """A new tenant; a name that is taken is refused."""
    check_name("tenant", name)
    if name in [tenant.name for tenant in await store.tenants()]:
        raise BadInput(what=f"there is a tenant {name!r} already; list them with: keptwork tenants list")
    id = await store.add_tenant(name)
    return next(tenant for tenant in await store.tenants() if tenant.id == id)


async def limit(store: Store, name: str, changes: Mapping[str, int | None], *, reset: bool = False) -> Tenant:
    """What a tenant may ask of servers from now on, where it is to be other than what they say themselves: these, and
    what it had of its own before, unless that is reset. Servers know within 5 s."""

    async def work(transaction: Transaction) -> Tenant:
        before = await _named(transaction, name)
        limits = allowance.changed(None if reset else before.limits, changes)
        await transaction.set_tenant_limits(before.id, limits)
        return before._replace(limits=limits)

    return await store.atomically(work)


async def _named(store: Reader, name: str) -> Tenant:
    id = await store.tenant(name)
    return next(tenant for tenant in await store.tenants() if tenant.id == id)


def as_json(tenant: Tenant) -> dict[str, Any]:
    """A tenant as it is shown outside."""
    known = {"id": tenant.id, "name": tenant.name, "created_at": rfc3339(tenant.created_at)}
    return known | {"limits": allowance.own_limits(tenant.limits)}

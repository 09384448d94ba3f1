"""Tenants: whose work it is."""

from __future__ import annotations

from typing import Any

from detent.bounds import check_name
from detent.errors import BadInput
from detent.moments import rfc3339
from detent.store import Store
from detent.store.records import Tenant


async def listing(store: Store) -> list[Tenant]:
    """Every tenant, in the order they were made."""
    return await store.tenants()


async def name_of(store: Store, id: int) -> str:
    """What a tenant is called."""
    return next(tenant.name for tenant in await store.tenants() if tenant.id == id)


async def add(store: Store, name: str) -> Tenant:
    """A new tenant; a name that is taken is refused."""
    check_name("tenant", name)
    if name in [tenant.name for tenant in await store.tenants()]:
        raise BadInput(what=f"there is a tenant {name!r} already; list them with: detent tenants list")
    id = await store.add_tenant(name)
    return next(tenant for tenant in await store.tenants() if tenant.id == id)


def as_json(tenant: Tenant) -> dict[str, Any]:
    """A tenant as it is shown outside."""
    return {"id": tenant.id, "name": tenant.name, "created_at": rfc3339(tenant.created_at)}

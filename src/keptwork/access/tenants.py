"""Tenants: list and add them, and set their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keptwork.access import scopes
from keptwork.core.durations import rfc3339
from keptwork.core.validation import check_name
from keptwork.errors import BadInput
from keptwork.store import Store, Transaction
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.records import Tenant
from keptwork.store.contract.store import Reader


async def listing(store: Store) -> list[Tenant]:
    """List the tenants in the order of their creation."""
    return await store.tenants()


async def name_of(store: Store, id: int) -> str:
    """Return the name of a tenant."""
    return next(tenant.name for tenant in await store.tenants() if tenant.id == id)


@acknowledged
async def add(store: Store, name: str) -> Tenant:
    """Add a tenant. Raise `BadInput` if the name is taken."""
    check_name("tenant", name)
    if name in [tenant.name for tenant in await store.tenants()]:
        raise BadInput(what=f"there is a tenant {name!r} already; list them with: keptwork tenants list")
    id = await store.add_tenant(name)
    return next(tenant for tenant in await store.tenants() if tenant.id == id)


async def limit(store: Store, name: str, changes: Mapping[str, int | None], *, reset: bool = False) -> Tenant:
    """Set limits of a tenant that differ from the servers' defaults.

    Servers apply them within 5 s. Limits that the tenant had before stay, unless `reset` is set.
    """

    async def work(transaction: Transaction) -> Tenant:
        before = await _named(transaction, name)
        limits = scopes.changed(None if reset else before.limits, changes)
        await transaction.set_tenant_limits(before.id, limits)
        return before._replace(limits=limits)

    return await store.atomically(work)


async def _named(store: Reader, name: str) -> Tenant:
    id = await store.tenant(name)
    return next(tenant for tenant in await store.tenants() if tenant.id == id)


def as_json(tenant: Tenant) -> dict[str, Any]:
    """Return a tenant in its public form."""
    known = {"id": tenant.id, "name": tenant.name, "created_at": rfc3339(tenant.created_at)}
    return known | {"limits": scopes.own_limits(tenant.limits)}

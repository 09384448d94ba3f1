"""Row security: on PostgreSQL, a request uses sessions that see only the rows of its tenant.

It is a second protection: every query names its tenant, and if a route forgets to, the database still shows no rows of
other tenants. Row security uses the role `keptwork_app`, which migrations create if they can. Without the role, only
the queries protect, and the log reports it. `keptwork migrate --guards` grants the required rights to a role that was
created later.
"""

from __future__ import annotations

import logging
from typing import Literal

from starlette.datastructures import State

from keptwork.errors import BadInput
from keptwork.store import Store

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

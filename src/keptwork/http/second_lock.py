"""The second lock: on PostgreSQL a request works in sessions that see the rows of its tenant and no others.

The first lock is that every query names its tenant. Should a route forget to, the database still shows nothing foreign.
It uses the role `keptwork_app`, which migrations create if they can; without it there is one lock, and the log says so.
`keptwork migrate --guards` grants a role that was created later what it needs.
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
    """Whether requests are narrowed to their tenants."""
    lacking = None if wanted == "off" else await store.cannot_narrow()
    if lacking is None:
        return wanted != "off"
    if wanted == "require":
        raise BadInput(what=f"row_security is required, and cannot be had: {lacking}; {HOW}")
    logger.warning("requests are not narrowed to their tenants by the database: %s; %s", lacking, HOW)
    return False


def of_tenant(state: State, tenant_id: int) -> Store:
    """The server's database, as this tenant may see it."""
    store: Store = state.store
    return store.narrowed(tenant_id) if state.narrows else store

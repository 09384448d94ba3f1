"""`detent why`: what keeps a job where it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from detent.cli import screen
from detent.cli.database import DEFAULT_TENANT_NAME, Db, JobId, Tenant, with_tenant
from detent.lifecycle import JOB
from detent.service import why as service
from detent.service.entities import public_id

if TYPE_CHECKING:
    from detent.service.why import Reason
    from detent.store import Store


def why(id: JobId, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Tell why a job is not moving: everything in its way, what binds first coming first, and when each clears."""

    async def read(store: Store, tenant_id: int) -> tuple[dict[str, Any], list[Reason], int]:
        return *await service.why(store, tenant_id, id), await store.now()

    job, reasons, now = asyncio.run(with_tenant(db, tenant, read))
    told = {"id": public_id(JOB.name, job["id"]), "state": job["state"], "status": job["state"]}
    shown = {**told, "reasons": [service.as_json(reason) for reason in reasons]}
    screen.emit(shown, lambda: _told(job, reasons, now), as_json)


def _told(job: dict[str, Any], reasons: list[Reason], now: int) -> str:
    head = f"{public_id(JOB.name, job['id'])} ({job['kind']}) is {job['state']}"
    lines = [f"{head}: {_line(reasons[0], now)}", *(f"  also: {_line(reason, now)}" for reason in reasons[1:])]
    return "\n".join([*lines, *(f"  try: {reason.todo}" for reason in reasons if reason.todo)])


def _line(reason: Reason, now: int) -> str:
    if reason.clears_at is None:
        return reason.says
    return f"{reason.says}; that clears {screen.ago(reason.clears_at, now)}, at {screen.moment(reason.clears_at)}"

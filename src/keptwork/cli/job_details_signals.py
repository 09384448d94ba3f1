"""`keptwork jobs signal`: send a signal that jobs wait for."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, with_tenant
from keptwork.errors import BadInput
from keptwork.jobs import commands_signals as service

if TYPE_CHECKING:
    from keptwork.store.contract.store import Store
    from keptwork.store.contract.waits_signals import Sent


def signal(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Signal name.")],
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON", help="Payload of the signal. Use - to read stdin.")
    ] = "null",
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only for this job.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key. A repeated key sends nothing.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Send a signal to the jobs that wait for it now or within a week."""
    told = _read(sys.stdin.read() if payload == "-" else payload)

    async def send(store: Store, tenant_id: int) -> Sent:
        return await service.send(store, tenant_id, name, told, job=job, key=key)

    sent: Sent = asyncio.run(with_tenant(db, tenant, send))
    jobs = "1 job goes on" if sent.woken == 1 else f"{sent.woken:,} jobs go on"
    said = f"{name} was sent; {jobs}." if sent.new else f"{name} was sent before under that key; nothing was sent."
    screen.emit({"name": name, "sent": sent.new, "woken": sent.woken}, lambda: said, as_json)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(what=f"the payload is no JSON: {error}") from None

"""The options that name a database and a tenant, and functions that open the database."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.access.scopes import LARGEST
from keptwork.errors import BadInput

if TYPE_CHECKING:
    from keptwork.store import Store


Db = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Database URL. Default: $KEPTWORK_DB, then sqlite:///keptwork.db."),
]
"""The option of every command that opens a database."""

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Tenant name.")]
"""The option of every command that works for one tenant."""

JobId = Annotated[str, typer.Argument(metavar="ID", help="Public ID of the job.")]
"""The argument of every command about one job."""

DEFAULT_TENANT_NAME = "default"


def operator() -> str:
    """Return the name of the current user for the event log, such as `cli:ann`."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "cli"


@asynccontextmanager
async def opened(url: str | None, *, creates: bool = False) -> AsyncIterator[Store]:
    """Open a database.

    Reject a missing or outdated database, unless `creates` is set: then create it, and bring an older SQLite file up to
    date.
    """
    from keptwork.store import open_store

    store = await open_store(url, migrate=None if creates else False, create=creates)
    try:
        yield store
    finally:
        await store.close()


async def with_tenant(url: str | None, tenant: str, use: Any, *, creates: bool = False) -> Any:
    """Open a database, call `use(store, tenant_id)`, and return its result."""
    async with opened(url, creates=creates) as store:
        return await use(store, await store.tenant(tenant))


# Options that set the HTTP API limits of a tenant.


_BOUND = {"min": 0, "max": LARGEST, "metavar": "N", "show_default": False}

RequestsPerSecond = Annotated[
    int | None, typer.Option(help="Requests per second and tenant, in each server process.", **_BOUND)
]
Burst = Annotated[int | None, typer.Option(help="Maximum burst of requests.", **_BOUND)]
MaxInFlight = Annotated[int | None, typer.Option(help="Maximum concurrent requests per tenant.", **_BOUND)]
MaxStreams = Annotated[int | None, typer.Option(help="Maximum concurrent streams and long polls per tenant.", **_BOUND)]
MaxQueued = Annotated[int | None, typer.Option(help="Maximum queued jobs per tenant (approximate).", **_BOUND)]


# The webhook options of a flow. The signing secret is passed by the name of its environment variable.


Webhook = Annotated[
    str | None, typer.Option("--webhook", metavar="URL", help="URL that receives a signed message when the flow ends.")
]
SecretEnv = Annotated[
    str | None,
    typer.Option(
        "--webhook-secret-env",
        metavar="NAME",
        help="Environment variable with the signing secret. Default: KEPTWORK_WEBHOOK_SECRET.",
    ),
]


def webhook(url: str | None, secret_env: str | None) -> dict[str, str] | None:
    """Return the webhook settings of a flow, checked without a database, or None without a webhook."""
    from keptwork.webhooks import outbox

    if url is None:
        if secret_env is not None:
            raise BadInput(what="--webhook-secret-env is of no use by itself; say whom to tell with --webhook URL")
        return None
    asked = {"url": url} if secret_env is None else {"url": url, "secret_env": secret_env}
    outbox.checked(asked)
    return asked

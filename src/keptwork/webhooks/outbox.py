"""Webhooks: request them with a flow, enqueue them in its last transaction, and resend them.

A delivery is signed with a secret that is named in the database and read where it is sent (`secret`). The secret itself
is never stored in the database.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import LIFECYCLES, Lifecycle
from keptwork.errors import BadInput, NotFound
from keptwork.store import Store, Transaction
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.outbox import PENDING, STATES, Delivery, NewDelivery
from keptwork.webhooks.address import Allowed, endpoint, shown

ALLOW = "KEPTWORK_WEBHOOK_ALLOW"
SECRET = "KEPTWORK_WEBHOOK_SECRET"  # noqa: S105 - the name of one
SHORTEST_SECRET = 16
LARGEST_SECRET = 4096
LONGEST_ERROR = 2000
LISTING = "keptwork webhooks list"

# The user who submits a flow names the secret, which must not be an arbitrary variable of a worker.
_SECRET_NAME = re.compile(rf"{SECRET}(_[A-Z0-9_]{{1,60}})?")
_KEY_FILE = "_FILE"


def checked(webhook: object) -> str:
    """Return the webhook of a new flow as its row stores it, or raise `BadInput`.

    It is {"url": …}, with "secret_env" if it has its own secret.
    """
    if not isinstance(webhook, Mapping) or not set(webhook) <= {"url", "secret_env"}:
        raise BadInput(what='a webhook is {"url": "https://…"}, with "secret_env" if it has a secret of its own')
    endpoint(webhook.get("url"), allowed())
    name = webhook.get("secret_env")
    if name is not None:
        _check_secret_name(name)
    return json.dumps({"url": webhook["url"]} if name is None else {"url": webhook["url"], "secret_env": name})


def allowed() -> Allowed:
    """Return the hosts that this deployment names in KEPTWORK_WEBHOOK_ALLOW."""
    return Allowed.of(os.environ.get(ALLOW, ""))


def secret(name: str | None) -> bytes:
    """Return the secret of this name from the environment, or from the file in NAME_FILE."""
    name = name or SECRET
    _check_secret_name(name)
    path = os.environ.get(f"{name}{_KEY_FILE}")
    found = _key_file(name, path) if path else os.environ.get(name, "").encode()
    if not found:
        raise BadInput(what=f"there is no secret to sign with: set {name} or {name}{_KEY_FILE} where workers run")
    if not SHORTEST_SECRET <= len(found) <= LARGEST_SECRET:
        raise BadInput(what=f"the secret {name} has {len(found):,} bytes; it needs {SHORTEST_SECRET} or more")
    return found


async def enqueue(tx: Transaction, flow_row: Mapping[str, Any], lifecycle: Lifecycle, state: str) -> None:
    """Enqueue the webhook delivery for the end of a flow, if it has a webhook.

    Call it in the transaction that ends the flow.
    """
    if not flow_row["webhook"]:
        return
    webhook = json.loads(flow_row["webhook"])
    (row,) = await tx.rows(lifecycle, [flow_row["id"]])
    seq = row["seq"] + (row["state"] != state)  # if the move is not written yet, the delivery is for the coming move
    event = f"{lifecycle.name}.{state.lower()}"
    body = _body(name_of(lifecycle.name, row["id"], seq), event, row, lifecycle, state, await tx.now())
    where = {"url": webhook["url"], "secret_env": webhook.get("secret_env")}
    await tx.put_delivery(NewDelivery(row["tenant_id"], lifecycle.name, row["id"], seq, event, body=body, **where))


def name_of(entity: str, key: int, seq: int) -> str:
    """Return the name of a delivery. It is that of the move it reports, however often it is sent."""
    return f"{public_id(entity, key)}:{seq}"


async def listed(
    store: Store, tenant_id: int, *, flow: str | None = None, state: str | None = None, limit: int = 50
) -> list[Delivery]:
    """List a tenant's deliveries, newest first."""
    _check_state(state)
    if not 1 <= limit <= 10_000:
        raise BadInput(what=f"a limit of {limit} is out of bounds; give 1 to 10000")
    key = None if flow is None else _flow(flow)[1]
    return await store.deliveries(tenant_id, flow=key, state=state, limit=limit)


async def untold(store: Store, tenant_id: int, flow: Mapping[str, Any]) -> list[Delivery]:
    """Return the pending deliveries of a flow. A flow without a webhook needs no query."""
    return await store.deliveries(tenant_id, flow=flow["id"], state=PENDING) if flow["webhook"] else []


class Page(NamedTuple):
    """A page of deliveries, and the cursor of the next page if there are more."""

    deliveries: list[Delivery]
    next: str | None


async def page(
    store: Store,
    tenant_id: int,
    *,
    flow: str | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page:
    """Return one page of a tenant's deliveries, newest first."""
    _check_state(state)
    key = None if flow is None else _flow(flow)[1]
    start = None if after is None else int(after)
    found = await store.deliveries(tenant_id, flow=key, state=state, after=start, limit=limit + 1)
    return Page(found[:limit], str(found[limit - 1].id) if len(found) > limit else None)


def _check_state(state: str | None) -> None:
    if state is not None and state not in STATES:
        raise BadInput(what=f"{state!r} is no state of a message; there are: {', '.join(STATES)}")


async def find(store: Store, tenant_id: int, name: str) -> Delivery:
    """Return the delivery of this name, or raise `NotFound`."""
    flow, _, seq = name.strip().rpartition(":")
    if not seq.isascii() or not seq.isdecimal() or len(seq) > 9:
        raise _unknown(name)
    entity, key = _flow(flow, name)
    found = await store.delivery(tenant_id, entity, key, int(seq))
    if found is None:
        raise _unknown(name)
    return found


@acknowledged
async def retry(store: Store, tenant_id: int, name: str) -> Delivery:
    """Send a delivery again under the same name. Return it as it was before."""
    before = await find(store, tenant_id, name)
    if not await store.retry_delivery(tenant_id, before.id):
        raise _unknown(name)
    return before


def as_json(delivery: Delivery, *, whole: bool = False) -> dict[str, Any]:
    """Return a delivery in its public form.

    Its URL has no query, and only the name of its secret is shown.
    """
    facts = {
        "id": name_of(delivery.entity, delivery.entity_id, delivery.seq),
        "flow": public_id(delivery.entity, delivery.entity_id),
        "event": delivery.event,
        "url": shown(delivery.url),
        "secret": delivery.secret_env or SECRET,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "most_attempts": delivery.most_attempts,
        "created_at": rfc3339(delivery.created_at),
        "next_at": rfc3339(delivery.next_at) if delivery.state == PENDING else None,
        "ended_at": delivery.ended_at and rfc3339(delivery.ended_at),
        "last_error": delivery.last_error,
    }
    return {**facts, "body": json.loads(delivery.body)} if whole else facts


def _body(name: str, event: str, row: Mapping[str, Any], lifecycle: Lifecycle, state: str, now: int) -> str:
    times = {at: row[at] and rfc3339(row[at]) for at in ("created_at", "started_at")}
    flow = {
        "id": public_id(lifecycle.name, row["id"]),
        "kind": lifecycle.name,
        "name": row.get("name"),
        "state": state,
        "error": row.get("error") and row["error"][:LONGEST_ERROR],
        "correlation_id": row["correlation_id"],
        **times,
        "completed_at": rfc3339(row["completed_at"] or now),
    }
    return json.dumps({"id": name, "event": event, "flow": flow}, separators=(",", ":"))


def _check_secret_name(name: object) -> None:
    if not isinstance(name, str) or not _SECRET_NAME.fullmatch(name) or name.endswith(_KEY_FILE):
        # The text might be the secret itself, so the message does not repeat it.
        raise BadInput(what=f"that is no name of a webhook's secret; it must be {SECRET} or begin with {SECRET}_")


def _key_file(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(LARGEST_SECRET + 1).strip()
    except OSError as error:
        raise BadInput(what=f"the file that {name}{_KEY_FILE} names cannot be read: {error.strerror}") from None


def _flow(flow: str, name: str | None = None) -> tuple[str, int]:
    prefix, key = ids.key_of(flow.strip()) or ("", 0)
    entity = next((one.name for one in LIFECYCLES.values() if one.prefix == prefix), None)
    if entity is None:
        raise _unknown(name or flow)
    return entity, key


def _unknown(name: str) -> NotFound:
    return NotFound(what="webhook", id=repr(name), listing=LISTING)

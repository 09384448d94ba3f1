"""Send signals that jobs wait for."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from keptwork.core.lifecycles import JOB
from keptwork.core.validation import LARGEST_PAYLOAD, LONGEST_NAME, check_name
from keptwork.errors import BadInput, NotFound
from keptwork.jobs.queries import key_of
from keptwork.store.contract.store import Enqueues
from keptwork.store.contract.waits_signals import EVERYONE, NewSignal, Sent


def check_event(name: object) -> None:
    """Raise `BadInput` unless both databases can store the name in the name of a wait."""
    check_name("event", name)
    if len(str(name)) > LONGEST_NAME:
        raise BadInput(
            what=f"the name of an event of {len(str(name)):,} characters is over the limit of {LONGEST_NAME}"
        )


async def send(
    where: Enqueues, tenant_id: int, name: str, payload: Any = None, *, job: str | None = None, key: str | None = None
) -> Sent:
    """Send a signal to all jobs of the tenant that wait for it, or to one job.

    `where` is a store or a transaction of one.
    """
    check_event(name)
    if key is not None:
        check_name("key", key)
    text = _text(payload)
    to = EVERYONE if job is None else key_of(job)
    if not hasattr(where, "send_signal"):
        raise BadInput(what="an event is sent in a transaction of app.transaction(), not over a connection of your own")
    if to != EVERYONE and await where.get(JOB, to, tenant_id) is None:  # type: ignore[attr-defined]
        raise NotFound(what="job", id=repr(job), listing="keptwork jobs list")
    # Without the sender's key, the signal gets its own, so that a repeated write sends it once.
    sent: Sent = await where.send_signal(NewSignal(tenant_id, name, text, key or f"#{uuid4()}", to))
    return sent


def _text(payload: Any) -> str:
    try:
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(what=f"the payload of an event must be what JSON can hold: {error}") from None
    if len(text) > LARGEST_PAYLOAD:
        raise BadInput(what=f"a payload of {len(text):,} bytes is over the limit of {LARGEST_PAYLOAD >> 20} MiB")
    return text

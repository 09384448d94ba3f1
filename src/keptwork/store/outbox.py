"""What is to be told to the outside of a flow's end, and what came of telling it."""

from __future__ import annotations

from typing import NamedTuple

PENDING, DELIVERED, GIVEN_UP = STATES = ("pending", "delivered", "given_up")
"""What can be said of a delivery. It has no lifecycle: nothing waits for it, and no event tells of it."""

MOST_ATTEMPTS = 14
"""About a day's worth of them, with the pauses between."""


class NewDelivery(NamedTuple):
    """A message about one move of an entity. The secret it is signed with is named, never kept."""

    tenant_id: int
    entity: str
    entity_id: int
    seq: int
    event: str
    url: str
    body: str
    secret_env: str | None = None
    most_attempts: int = MOST_ATTEMPTS


class Delivery(NamedTuple):
    """A message as it stands. Times are microseconds; `next_at` is when an attempt is due, or until when one is under
    way. `attempts` only grows, so that it tells whose attempt is the last."""

    id: int
    tenant_id: int
    entity: str
    entity_id: int
    seq: int
    event: str
    url: str
    body: str
    secret_env: str | None
    state: str
    attempts: int
    most_attempts: int
    created_at: int
    next_at: int
    ended_at: int | None
    last_error: str | None


OUTBOX_COLUMNS = Delivery._fields

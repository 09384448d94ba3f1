"""Webhook deliveries for the ends of flows, and their outcomes."""

from __future__ import annotations

from typing import NamedTuple

PENDING, DELIVERED, GIVEN_UP = STATES = ("pending", "delivered", "given_up")
"""The states of a delivery. It has no lifecycle, because nothing waits for it and no event records it."""

MOST_ATTEMPTS = 14
"""The maximum number of attempts. With the pauses between them, they last about a day."""


class NewDelivery(NamedTuple):
    """A message about one move of an entity. It names the secret for its signature, which is never stored."""

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
    """A message as it is now. Times are in microseconds. `next_at` is when an attempt is due, or when the lease of a
    running attempt expires. `attempts` only increases, so that an outcome counts only for the latest attempt."""

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

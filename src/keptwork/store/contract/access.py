"""API keys as the store keeps them. The store has only the hash of a key's secret."""

from __future__ import annotations

from typing import NamedTuple

from keptwork.core import ids

PREFIX = "key"


class NewApiKey(NamedTuple):
    """An API key to store. `lasts_us` is its lifetime, and None means that it does not expire."""

    tenant_id: int
    name: str
    scopes: str
    hash: str
    created_by: str
    lasts_us: int | None = None


class ApiKeyRow(NamedTuple):
    """A stored API key. Times are in microseconds. `scopes` are comma-separated names, and `replaced_by` is the key
    that replaced it by rotation."""

    id: int
    tenant_id: int
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    replaced_by: int | None
    hash: str
    name: str
    scopes: str
    created_by: str
    revoked_by: str | None

    @property
    def public_id(self) -> str:
        return ids.public(PREFIX, self.id)

    def is_live(self, now: int) -> bool:
        """Return whether the key is valid at this time."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class LiveApiKey(NamedTuple):
    """A key that was valid at this time of the database."""

    key: ApiKeyRow
    at: int


API_KEY_COLUMNS = ApiKeyRow._fields

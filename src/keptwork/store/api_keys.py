"""Keys to the HTTP API, as they go into the store and come out of it. The secret itself never does: only its hash."""

from __future__ import annotations

from typing import NamedTuple

from keptwork import ids

PREFIX = "key"


class NewApiKey(NamedTuple):
    """A key to be kept. `lasts_us` is how long it opens anything, for ever if none is said."""

    tenant_id: int
    name: str
    scopes: str
    hash: str
    created_by: str
    lasts_us: int | None = None


class ApiKeyRow(NamedTuple):
    """A key as it is kept. Times are microseconds; `scopes` are names with commas between them, `replaced_by` is the
    key that it was rotated to."""

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
        """Whether it opens anything at that time."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class LiveApiKey(NamedTuple):
    """A key that opened something at that time of the database's."""

    key: ApiKeyRow
    at: int


API_KEY_COLUMNS = ApiKeyRow._fields

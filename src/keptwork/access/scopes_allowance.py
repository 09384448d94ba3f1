"""Tenant limits on a server: request rate, concurrency, and queued jobs.

A server has settings (`[server]` in keptwork.toml). A tenant can have its own limits, which are stored in the database
and apply on every server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from keptwork.errors import BadInput

LARGEST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of one tenant. 0 means no limit. Each server process counts for itself, except for `max_queued`."""

    requests_per_second: int = 1_000
    burst: int = 2_000
    max_in_flight: int = 100
    max_streams: int = 1_000
    max_queued: int = 1_000_000

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or not 0 <= value <= LARGEST:
                raise BadInput(what=f"{name} is {value!r}; it must be a whole number from 0 (no bound) to {LARGEST}")

    def of_tenant(self, own: str | None) -> Allowance:
        """Return the limits of a tenant that overrides these with its own.

        Limits that a newer program stored, and this one does not know, are ignored.

        >>> Allowance().of_tenant('{"max_queued": 5, "colour": "red"}').max_queued
        5
        """
        return replace(self, **{name: value for name, value in own_limits(own).items() if name in NAMES})


NAMES = tuple(one.name for one in fields(Allowance))


def own_limits(text: str | None) -> dict[str, int]:
    """Return a tenant's own limits."""
    found = json.loads(text) if text else {}
    if not isinstance(found, dict):
        raise BadInput(what=f"the limits of a tenant are {text}; they must be a JSON object")
    return found


def changed(text: str | None, changes: Mapping[str, int | None]) -> str | None:
    """Return a tenant's own limits with these changes. None leaves a limit unchanged.

    >>> changed('{"burst": 5}', {"max_queued": 7, "burst": None})
    '{"burst": 5, "max_queued": 7}'
    """
    own = own_limits(text) | {name: value for name, value in changes.items() if value is not None}
    Allowance(**{name: value for name, value in own.items() if name in NAMES})
    return json.dumps(own) if own else None

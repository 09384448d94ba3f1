"""Parts that routes share: the store, pagination, validated text, and responses."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from pydantic import AfterValidator, BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.errors import BadCursor
from keptwork.http import problems
from keptwork.http.auth import authenticated, of_tenant
from keptwork.http.rate_limit import LARGEST_PAGE
from keptwork.observability import spans
from keptwork.store import Store
from keptwork.store.contract.operations_search import LONGEST_TEXT, MOST_LOOKED_AT

# The trace of a request: the header `traceparent` of W3C Trace Context.
#
# An invalid header is ignored, as the standard requires, so that a caller's tracing never prevents its work.


HEADER = "traceparent"
PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "W3C Trace Context. The trace continues in the job.",
}


async def trace(request: Request) -> str | None:
    """Return the trace that a route stores with the jobs it creates."""
    return spans.received(request.headers.get(HEADER))


Trace = Annotated[str | None, Depends(trace)]
"""The trace, as it is stored with what the request creates."""


# Cursors: opaque text for the position at which a list continues.
#
# A cursor has a checksum over its list and its position, so that a mistyped cursor or one of another list is rejected.
# It grants no access, because every query filters by tenant.


LONGEST = 200
_CHECK = 6


def sealed(listing: str, place: str | None) -> str | None:
    """Return the cursor of a position in a list, or None at the end of the list.

    >>> opened("jobs", sealed("jobs", "job_17"))
    'job_17'
    """
    if place is None:
        return None
    return base64.urlsafe_b64encode(_checksum(listing, place) + place.encode()).rstrip(b"=").decode()


def opened(listing: str, cursor: str | None) -> str | None:
    """Return the position of a cursor of this list, or None without a cursor."""
    if not cursor:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        place = raw[_CHECK:].decode()
    except (binascii.Error, ValueError):
        raise BadCursor from None
    if len(cursor) > LONGEST or sealed(listing, place) != cursor:
        raise BadCursor
    return place


def _checksum(listing: str, place: str) -> bytes:
    return hashlib.blake2b(f"{listing}\n{place}".encode(), digest_size=_CHECK).digest()


async def _store(request: Request) -> Store:
    return of_tenant(request.app.state, (await authenticated(request)).tenant_id)


async def _whole(request: Request) -> Store:
    found: Store = request.app.state.store
    return found


Db = Annotated[Store, Depends(_store)]
"""The server's database, limited to the caller's tenant."""

WholeDb = Annotated[Store, Depends(_whole)]
"""The whole database, for data without a tenant. Only the tenant in a query limits what it returns."""


def _kept(text: str) -> str:
    """Reject text that a database cannot store: NUL characters (PostgreSQL) and unpaired surrogates."""
    if "\0" in text:
        raise ValueError("it must not hold a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds half of a character at {error.start}") from None
    return text


Text = Annotated[str, AfterValidator(_kept)]
"""Text that both databases can store."""


def _plain(value: Any) -> Any:
    """Reject JSON that a database or reader cannot accept: NUL, unpaired surrogates, infinite numbers."""
    if isinstance(value, str):
        _kept(value)
    elif isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    elif isinstance(value, dict):
        _plain([*value, *value.values()])
    elif isinstance(value, list):
        for part in value:
            _plain(part)
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_plain)]
"""Any JSON object."""

After = Annotated[
    str | None, Query(max_length=LONGEST, description="`next` of the previous page. Omit it to start at the beginning.")
]
Most = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Maximum number of results.")]
Name = Annotated[Text | None, Query(min_length=1, max_length=500)]
Search = Annotated[
    Text | None,
    Query(
        min_length=1,
        max_length=LONGEST_TEXT,
        description=(
            f"Text that results must contain, ignoring case. Searches the next {MOST_LOOKED_AT:,} that "
            "match the other filters, so a page can be short or empty and still have a `next`: continue "
            "with it."
        ),
    ),
]


def answer(value: Any, status: int = 200) -> Response:
    """Return JSON that already has the shape of its model, without validating it again."""
    return Response(_written(value).encode(), status, None, JSON)


_written = json.JSONEncoder(separators=(",", ":")).encode
JSON = "application/json"


def only(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a model's fields, and no others."""
    return {name: values[name] for name in _names(model)}


@cache
def _names(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(model.model_fields)


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


def fails(*kinds: type[errors.KeptworkError]) -> dict[int | str, dict[str, Any]]:
    """Return the possible errors of a route that needs a key, for the OpenAPI document."""
    return refusals(errors.Unauthenticated, errors.MissingScope, errors.InvalidRequest, errors.TooManyRequests, *kinds)


def refusals(*kinds: type[errors.KeptworkError]) -> dict[int | str, dict[str, Any]]:
    """Return these errors by status, for the OpenAPI document."""
    told: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        said = told.setdefault(kind.status, {"description": "", "content": {problems.MEDIA_TYPE: {"schema": SCHEMA}}})
        said["description"] = ", ".join(filter(None, (said["description"], kind.title())))
    return told


SCHEMA = {"$ref": "#/components/schemas/Problem"}

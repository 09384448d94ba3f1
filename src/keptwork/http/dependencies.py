"""Parts that routes share: the store, pagination, validated text, and responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from pydantic import AfterValidator, BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.http import problems
from keptwork.http.auth import authenticated
from keptwork.http.auth_second_lock import of_tenant
from keptwork.http.dependencies_cursors import LONGEST
from keptwork.http.rate_limit_requests import LARGEST_PAGE
from keptwork.store import Store
from keptwork.store.contract.operations_search import LONGEST_TEXT, MOST_LOOKED_AT


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

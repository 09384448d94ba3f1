"""What routes have in common: the store they ask, how far a page goes, how an answer is written."""

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
from keptwork.http.cursors import LONGEST
from keptwork.http.limits import LARGEST_PAGE
from keptwork.http.second_lock import of_tenant
from keptwork.service.search import LONGEST_TEXT, MOST_LOOKED_AT
from keptwork.store import Store


async def _store(request: Request) -> Store:
    return of_tenant(request.app.state, (await authenticated(request)).tenant_id)


async def _whole(request: Request) -> Store:
    found: Store = request.app.state.store
    return found


Db = Annotated[Store, Depends(_store)]
"""The database of the server, as far as it is the caller's tenant's."""

WholeDb = Annotated[Store, Depends(_whole)]
"""All of it, for what belongs to no tenant; whatever is told of it is chosen by the tenant in the query alone."""


def _kept(text: str) -> str:
    """PostgreSQL keeps no text with a NUL, and asks in vain for one; neither keeps half of a character."""
    if "\0" in text:
        raise ValueError("it must not hold a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds half of a character at {error.start}") from None
    return text


Text = Annotated[str, AfterValidator(_kept)]
"""Any text that both databases can keep."""


def _plain(value: Any) -> Any:
    """JSON as both databases and every reader can have it: no NUL, no half of a character, no number without end."""
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
"""An object of whatever JSON."""

After = Annotated[
    str | None, Query(max_length=LONGEST, description="`next` of an earlier answer; without it from the beginning.")
]
Most = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="At most so many.")]
Name = Annotated[Text | None, Query(min_length=1, max_length=500)]
Search = Annotated[
    Text | None,
    Query(
        min_length=1,
        max_length=LONGEST_TEXT,
        description=f"Only what holds this text, in whatever case, among the next {MOST_LOOKED_AT:,} that match the "
        "other filters. A page may then have few, or none, and `next` all the same: go on with it.",
    ),
]


def answer(value: Any, status: int = 200) -> Response:
    """JSON that was made to the shape of its model already, and is not checked a second time."""
    return Response(_written(value).encode(), status, None, JSON)


_written = json.JSONEncoder(separators=(",", ":")).encode
JSON = "application/json"


def only(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a model shows of something, and nothing else of it."""
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
    """What a route that needs a key can answer beside its success, for the OpenAPI document."""
    return refusals(errors.Unauthenticated, errors.MissingScope, errors.InvalidRequest, errors.TooManyRequests, *kinds)


def refusals(*kinds: type[errors.KeptworkError]) -> dict[int | str, dict[str, Any]]:
    """These and no others, by their status."""
    told: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        said = told.setdefault(kind.status, {"description": "", "content": {problems.MEDIA_TYPE: {"schema": SCHEMA}}})
        said["description"] = ", ".join(filter(None, (said["description"], kind.title())))
    return told


SCHEMA = {"$ref": "#/components/schemas/Problem"}

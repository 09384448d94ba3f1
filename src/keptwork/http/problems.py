"""Problem documents (RFC 9457): every answer that is not a success, made from the table in `errors.py`.

The type is a name and no address, so that it means the same wherever a server runs; the documentation has a page of
them all. What a client is told of something it may not see is the same, byte for byte, as of something that does not
exist; what is wrong with the server's database goes to the server's log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from keptwork import errors
from keptwork.errors import InvalidTransition, KeptworkError

MEDIA_TYPE = "application/problem+json"
BUSY_SECONDS = "1"
MOST_TOLD = 20
"""How many of the things that are wrong with one request."""

logger = logging.getLogger("keptwork.http")


def document(error: KeptworkError) -> dict[str, Any]:
    """What a client is told of an error."""
    told = {"type": error.problem(), "title": error.title(), "status": error.status, "detail": _detail(error)}
    if isinstance(error, InvalidTransition):
        told |= {"from": error.from_state, "trigger": error.trigger, "allowed": list(error.allowed)}
    if isinstance(error, errors.InvalidRequest):
        told["errors"] = error.problems
    if isinstance(error, errors.BadFlow):
        told["errors"] = [{"where": error.where(place), "what": what} for place, what in error.problems[:MOST_TOLD]]
    return told


def response(error: KeptworkError, headers: Mapping[str, str] | None = None) -> Response:
    """An error as an answer."""
    body = json.dumps(document(error)).encode()
    return Response(body, error.status, {**_headers(error), **(headers or {})}, MEDIA_TYPE)


def _detail(error: KeptworkError) -> str:
    if isinstance(error, errors.NotFound):
        return f"There is no such {error.facts['what']}"
    if isinstance(error, errors.SeesNoRows):
        return "This login sees no rows of the database; the server's log names the repair"
    if isinstance(error, errors.HoldsNoRows):
        return "The database holds no rows; the server's log names the repair"
    if isinstance(error, errors.StoreError):
        return "The database does not answer as it should; the server's log says more"
    if isinstance(error, errors.BadFlow):
        return f"The flow cannot be, for {len(error.problems)} reason{'s' if len(error.problems) > 1 else ''}"
    return str(error)


def _headers(error: KeptworkError) -> dict[str, str]:
    if isinstance(error, errors.Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    if error.status == 429:
        return {"Retry-After": str(error.facts["seconds"])}
    if error.status == 503 or isinstance(error, errors.RequestInFlight):
        return {"Retry-After": BUSY_SECONDS}
    return {}


def install(app: FastAPI) -> None:
    """From here on what routes raise becomes a problem; what nobody expected, the door tells."""
    app.add_exception_handler(KeptworkError, _known)
    app.add_exception_handler(RequestValidationError, _misfit)
    app.add_exception_handler(HTTPException, _framework)


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, KeptworkError)  # noqa: S101 - it is registered for these
    if error.status >= 500:
        logger.error("%s: %s", _asked(request.scope), error)
    return response(error)


async def _misfit(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - it is registered for these
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        detail = str(found[0].get("ctx", {}).get("error", "it cannot be read"))
        return response(errors.NotJson(detail=detail))
    return response(errors.InvalidRequest(problems=[(_where(one["loc"]), one["msg"]) for one in found[:MOST_TOLD]]))


def _where(location: tuple[Any, ...]) -> str:
    return ".".join(map(str, location))


async def _framework(request: Request, error: Exception) -> Response:
    """What the framework says by itself: no such route, no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    if error.status_code == 404:
        return response(errors.NoSuchRoute())
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return response(errors.WrongMethod(method=request.method, allowed=allowed), {"Allow": allowed})
    if error.status_code == 400:
        return response(errors.NotJson(detail="it cannot be read"))
    return unexpected(request.scope, error)


def unexpected(scope: Scope, error: Exception) -> Response:
    """What is told of a mistake of ours; the log has it whole."""
    logger.error("%s failed", _asked(scope), exc_info=error)
    return response(errors.InternalError())


def _asked(scope: Scope) -> str:
    """A request, as the log names it."""
    return f"{scope['method']} {scope['path']!r} ({scope.get('state', {}).get('request_id', '–')})"

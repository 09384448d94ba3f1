"""Problem documents (RFC 9457): every unsuccessful response, made from the table in `errors.py`.

The type is a name, not a URL, so that it means the same on every server. The documentation lists all types. A client
gets the same response, byte for byte, for something that it cannot see and for something that does not exist. Details
of database errors go only to the server's log.
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
"""Maximum number of reported problems per request."""

logger = logging.getLogger("keptwork.http")


def document(error: KeptworkError) -> dict[str, Any]:
    """Return the problem document of an error."""
    told = {"type": error.problem(), "title": error.title(), "status": error.status, "detail": _detail(error)}
    if isinstance(error, InvalidTransition):
        told |= {"from": error.from_state, "trigger": error.trigger, "allowed": list(error.allowed)}
    if isinstance(error, errors.InvalidRequest):
        told["errors"] = error.problems
    if isinstance(error, errors.BadFlow):
        told["errors"] = [{"where": error.where(place), "what": what} for place, what in error.problems[:MOST_TOLD]]
    return told


def response(error: KeptworkError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a response."""
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
    """Turn errors of routes into problem documents. The middleware handles unexpected errors."""
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
    """Return the problem for an error of the framework: unknown route or method, or malformed body."""
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
    """Return the response to an internal error, and log the error with its traceback."""
    logger.error("%s failed", _asked(scope), exc_info=error)
    return response(errors.InternalError())


def _asked(scope: Scope) -> str:
    """Return a request as the log names it."""
    return f"{scope['method']} {scope['path']!r} ({scope.get('state', {}).get('request_id', '–')})"

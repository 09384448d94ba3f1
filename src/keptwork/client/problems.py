"""Turn problem documents into the errors from which the server made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keptwork import errors
from keptwork.errors import KeptworkError

MEDIA_TYPE = "application/problem+json"

KINDS: dict[str, type[KeptworkError]] = {
    found.problem(): found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, KeptworkError)
}


def error_of(document: Mapping[str, Any], status: int, request_id: str | None = None) -> KeptworkError:
    """Return the error of a problem document.

    Its message is the document's `detail`, its status is that of the response, and its facts are the other members of
    the document. An unknown type becomes a plain `KeptworkError`.

    >>> error_of({"type": "urn:keptwork:problem:not-found", "detail": "There is no such job"}, 404)
    NotFound('There is no such job')
    """
    kind = KINDS.get(str(document.get("type")), KeptworkError)
    made = kind.__new__(kind)  # its own __init__ requires facts that clients do not receive
    Exception.__init__(made, str(document.get("detail") or document.get("title") or f"the server answered {status}"))
    told = {name: value for name, value in document.items() if name not in ("title", "detail")}
    vars(made).update(facts={**told, "status": status, "request_id": request_id}, status=status)
    vars(made).update(_own(kind, document))
    return made


def _own(kind: type[KeptworkError], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that code which catches the error can use."""
    if issubclass(kind, errors.InvalidTransition):
        allowed = document.get("allowed")
        return {
            "lifecycle": "",
            "from_state": str(document.get("from", "")),
            "trigger": str(document.get("trigger", "")),
            "allowed": tuple(map(str, allowed)) if isinstance(allowed, list) else (),
            "because": "",
        }
    if issubclass(kind, errors.InvalidRequest | errors.BadFlow):
        found = document.get("errors")
        return {"problems": found if isinstance(found, list) else [], "source": ""}
    return {}

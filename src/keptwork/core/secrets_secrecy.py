"""Reject definitions and inputs that contain secrets, because they are stored unchanged.

Secrets in conversations and outputs are redacted before they are stored. A definition and its inputs must run exactly
as they are, so a secret in them is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from keptwork.core import secrets_redaction
from keptwork.errors import BadInput


def insist(what: str, said: str) -> None:
    """Raise `BadInput` if JSON contains a secret. The message has its path, but not the secret.

    >>> insist("flow ship", '{"steps": [{"id": "push", "command": ["push", "ghp_0123456789abcdefghij"]}]}')
    Traceback (most recent call last):
    ...
    keptwork.errors.BadInput: flow ship holds a secret at steps.push.command.1 (GitHub token) and would be stored with \
it; keep it in the environment of the worker, and name the variable under env of a tool
    """
    redactor = secrets_redaction.current()
    if redactor.secret_in(said) is None:  # nearly always
        return
    for where, text in _texts(json.loads(said), ()):
        if label := redactor.secret_in(text):
            place = f" at {redactor.text('.'.join(where))}" if where else ""
            raise BadInput(
                what=f"{what} holds a secret{place} ({label}) and would be stored with it; keep it in the environment "
                "of the worker, and name the variable under env of a tool"
            )


def _texts(value: Any, where: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every string of a value with its path, including names. An element with an ID is named by it."""
    match value:
        case str():
            yield where, value
        case Mapping():
            for name, part in value.items():
                yield where, str(name)
                yield from _texts(part, (*where, str(name)))
        case list() | tuple():
            for number, part in enumerate(value):
                called = part.get("id") if isinstance(part, Mapping) else None
                yield from _texts(part, (*where, str(called or number)))

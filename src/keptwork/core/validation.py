"""Limits on the parts of a job: the length of its names, its priority, and its attempts.

Every way to enqueue a job applies them, including the SQL function `keptwork_enqueue`.
"""

from __future__ import annotations

import json
from typing import Any

from keptwork.errors import BadInput

OWN_KINDS = "keptwork."
"""Prefix of the kinds of jobs that run steps."""

OWN_QUEUES = "run-"
"""Prefix of the queues that `keptwork run` creates, one for each flow.

Only the process that runs or resumes the flow serves its queue.
"""

LARGEST_INT = (1 << 31) - 1
LARGEST_PAYLOAD = 1 << 20
LONGEST_NAME = 200
LONGEST_KEY = 500
_LENGTHS = {"kind": LONGEST_NAME, "queue": LONGEST_NAME, "tenant": LONGEST_NAME}


def check_priority(priority: object) -> None:
    """Raise `BadInput` unless the priority is an integer that both databases can store."""
    if type(priority) is not int or abs(priority) > LARGEST_INT:
        raise BadInput(what=f"{priority!r} is no priority; it is a whole number from -{LARGEST_INT} to {LARGEST_INT}")


def check_attempts(attempts: object) -> None:
    """Raise `BadInput` unless the number is at least 1 and both databases can store it."""
    if type(attempts) is not int or not 1 <= attempts <= LARGEST_INT:
        raise BadInput(what=f"max_attempts is {attempts!r}; it must be at least 1 and at most {LARGEST_INT}")


def check_name(what: str, text: object) -> None:
    """Raise `BadInput` unless a kind, queue, key, or ID is printable text of limited length."""
    longest = _LENGTHS.get(what, LONGEST_KEY)
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise BadInput(what=f"{text!r} is no {what}; it must be printable text")
    if len(text) > longest:
        raise BadInput(what=f"a {what} of {len(text):,} characters is over the limit of {longest}")


def plain_json(what: str, value: Any) -> str:
    """Return the value as JSON without infinities and NaN, which not every database and reader accepts."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise BadInput(what=f"{what} cannot be kept as JSON: {error}") from None

"""Convert the moves of completed jobs to outcomes that a worker without a database sends to its server.

Outcomes are split into requests of a permitted size. The server decides on the same moves again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import JOB, Change, Verb
from keptwork.store import Blob
from keptwork.store.contract.checkpoints_blobs import RESULT_BLOB

MOST_AT_ONCE = 500
LARGEST_BODY = 1_500_000
"""Slightly below the server's limit, to leave room for the rest of the request."""

Document = dict[str, Any]


def compact(value: Any) -> str:
    """Return the value as compact JSON."""
    return json.dumps(value, separators=(",", ":"))


def parts(changes: Sequence[Change]) -> Iterator[list[tuple[Change, Document]]]:
    """Yield the changes and their outcomes in batches that fit one request."""
    part: list[tuple[Change, Document]] = []
    size = 0
    for change in changes:
        told, length = _outcome(change)
        if part and (size + length > LARGEST_BODY or len(part) >= MOST_AT_ONCE):
            yield part
            part, size = [], 0
        part.append((change, told))
        size += length
    if part:
        yield part


def _outcome(change: Change) -> tuple[Document, int]:
    """Return the outcome of a job and the length of its JSON."""
    token = {"job": ids.public(JOB.prefix, change.id), "epoch": change.epoch}
    told = {**token, **_said(change)}
    length = len(compact(told))
    if length > LARGEST_BODY:
        wrong = {
            "kind": "permanent",
            "stage": "output",
            "message": f"{length:,} bytes are too many to be sent over HTTP",
        }
        return {**token, "outcome": "fail", "error": wrong}, 500
    return told, length


def _said(change: Change) -> Document:
    values = change.values
    match change.move.verb:
        case Verb.SUCCEED:
            blob: Blob | None = values.get(RESULT_BLOB)
            text = values["result"] if blob is None else blob.content
            return {"outcome": "succeed", "result": None if text is None else json.loads(text)}
        case Verb.SNOOZE:
            until = values.get("run_at")
            when = {"delay": values["delay_us"] / 1_000_000} if until is None else {"until": rfc3339(until)}
            return {"outcome": "snooze", **when}
        case Verb.RELEASE:
            held = {"held_by": values["held_by"]} if values.get("held_by") else {}
            return {"outcome": "release", "reason": change.reason, "back_off": values["delay_us"] > 0, **held}
        case Verb.CANCEL:
            return {"outcome": "cancel", "reason": change.reason}
    return {"outcome": "fail", "error": _fault(change)}


def _fault(change: Change) -> Document:
    stage = json.loads(change.detail or "{}").get("stage", "exec")
    told: Document = {"message": change.values["error"], "stage": stage, "kind": "transient"}
    if change.move.verb is Verb.RETRY:
        told["retry_in"] = change.values["delay_us"] / 1_000_000
    elif change.move.verb is Verb.FAIL:
        told["kind"] = "permanent"
    else:
        told["kind"] = {"validation_failed": "validation", "timeout": "timeout"}.get(change.reason or "", "transient")
    return told

"""What was said in the conversation of an agent: kept with each turn, and read back. Each message is stored once, so
that a conversation of many turns takes room for what was said in it and not for every time it was sent."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from detent.agent.conversation import Answer, Request
from detent.agent.discretion import answer_without, request_without
from detent.agent.redaction import Redactor, current
from detent.agent.transcript import added
from detent.errors import LeaseLost
from detent.lifecycle import JOB
from detent.moments import rfc3339
from detent.service.blobs import content_of
from detent.store import Blob, Job, Reader, Transaction
from detent.store.transcripts import Line, NewLine


class Said(NamedTuple):
    """A message of a transcript, and where it stands in it."""

    line: Line
    message: dict[str, Any]


async def append(
    tx: Transaction, job: Job, request: Request, answer: Answer, *, round: int = 0, redactor: Redactor | None = None
) -> None:
    """Writes down what a turn adds to the conversation, in the transaction that keeps its answer. `round` is which try
    of the job it is: each begins a conversation of its own. A job that is no longer held is `LeaseLost`."""
    discreet = redactor or current()
    new = added(request_without(discreet, request), answer_without(discreet, answer))
    lines = [NewLine(round, place.position, Blob.of(place.text.encode())) for place in new]
    if not await tx.say(job, lines):
        raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="say")


async def transcript(store: Reader, tenant_id: int, job: int) -> list[Said]:
    """All that was said in a job, in its order; that of a job of somebody else is empty."""
    lines = await store.transcript(tenant_id, job)
    contents = {one: json.loads(await content_of(store, tenant_id, one)) for one in {line.hash for line in lines}}
    return [Said(line, contents[line.hash]) for line in lines]


def as_json(said: Said) -> dict[str, Any]:
    """As it is read outside."""
    line = said.line
    place = {"round": line.round, "position": line.position, "hash": line.hash, "size": line.size}
    return {**place, "at": rfc3339(line.created_at), **said.message}

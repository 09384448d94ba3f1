"""Transcripts of agents' conversations: append each turn, and read them.

Each message is stored once, so that a conversation of many turns does not store a message again each time it is sent.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from keptwork.agents.conversation import Answer, Request
from keptwork.agents.transcripts_record import added, line
from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import JOB
from keptwork.core.secrets_redaction import Redactor, current
from keptwork.errors import BadInput, LeaseLost
from keptwork.store import Blob, Job, Reader, Transaction
from keptwork.store.contract.agents_transcripts import Line, NewLine
from keptwork.store.contract.checkpoints_blob_service import content_of


class Said(NamedTuple):
    """A message of a transcript, and its position."""

    line: Line
    message: dict[str, Any]


async def append(
    tx: Transaction, job: Job, request: Request, answer: Answer, *, round: int = 0, redactor: Redactor | None = None
) -> None:
    """Store what a turn adds to the conversation, in the transaction that stores its response.

    `round` is the attempt of the job; each attempt has its own conversation. Raise `LeaseLost` if the job is no longer
    held.
    """
    if not await tx.say(job, _lines(request, answer, round, redactor)):
        raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="say")


async def append_sent(tx: Transaction, job: Job, request: Request, *, round: int = 0) -> None:
    """Store what was sent to a model that did not respond. Nothing is stored if the job is no longer held."""
    await tx.say(job, _lines(request, None, round, None))


def _lines(request: Request, answer: Answer | None, round: int, redactor: Redactor | None) -> list[NewLine]:
    cleared = (redactor or current()).value
    new = [(place.position, line(cleared(place.said))) for place in added(request, answer)]
    return [NewLine(round, position, Blob.of(text.encode())) for position, text in new]


async def transcript(store: Reader, tenant_id: int, job: int) -> list[Said]:
    """Return the transcript of a job in order. It is empty for another tenant's job."""
    lines = await store.transcript(tenant_id, job)
    contents = {one: json.loads(await content_of(store, tenant_id, one)) for one in {each.hash for each in lines}}
    return [Said(each, contents[each.hash]) for each in lines]


class Page(NamedTuple):
    """A page of a transcript, and the cursor of the next page if there is more."""

    said: list[Said]
    next: str | None


async def page(store: Reader, tenant_id: int, job: int, *, after: str | None = None, limit: int = 50) -> Page:
    """Return one page of a job's transcript, from the start or after a cursor."""
    lines = await store.transcript(tenant_id, job)
    rest = [each for each in lines if after is None or (each.round, each.position) > _place(after)]
    shown = [Said(each, json.loads(await content_of(store, tenant_id, each.hash))) for each in rest[:limit]]
    return Page(shown, f"{rest[limit - 1].round}:{rest[limit - 1].position}" if len(rest) > limit else None)


def _place(after: str) -> tuple[int, int]:
    round, _, position = after.partition(":")
    if not (round.isdecimal() and position.isdecimal()):
        raise BadInput(what=f"{after!r} is no place in a transcript; take one from an earlier answer")
    return int(round), int(position)


def as_json(said: Said) -> dict[str, Any]:
    """Return a message in its public form."""
    at = said.line
    place = {"round": at.round, "position": at.position, "hash": at.hash, "size": at.size}
    return {**place, "at": rfc3339(at.created_at), **said.message}

"""Transcripts of agents' conversations: append each turn, and read them.

Each message is stored once, so that a conversation of many turns does not store a message again each time it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from keptwork.agents.conversation import Answer, Message, Request, Role, ToolUse
from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import JOB
from keptwork.core.secrets import Redactor, current
from keptwork.errors import BadInput, LeaseLost
from keptwork.store import Blob, Job, Reader, Transaction
from keptwork.store.contract.agents_transcripts import Line, NewLine
from keptwork.store.contract.checkpoints_blob_service import content_of

# Conversation messages in stored form: one line of JSON each, the same for equal messages.


SYSTEM = "system"
"""The role of the system prompt. It is not a message of the conversation, but the start of a transcript."""


class Place(NamedTuple):
    """A message in stored form, with its position."""

    position: int
    said: dict[str, Any]


def added(request: Request, answer: Answer | None) -> list[Place]:
    """Return what a turn adds to the transcript. That is the messages since the model's last answer, and the new
    answer, if any. The first turn also adds the system prompt, at position 0."""
    spoke = _last_answer(request.messages)
    first = [Place(0, {"role": SYSTEM, "text": request.system})] if spoke < 0 else []
    told = [Place(spoke + 2 + n, document(message)) for n, message in enumerate(request.messages[spoke + 1 :])]
    answered = [] if answer is None else [Place(len(request.messages) + 1, document(answer.message))]
    return [*first, *told, *answered]


def _last_answer(messages: Sequence[Message]) -> int:
    spoken = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
    return spoken[-1] if spoken else -1


def document(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object without its empty fields."""
    said: dict[str, Any] = {"role": message.role.value, "text": message.text}
    if message.uses:
        said["uses"] = [{"id": use.id, "name": use.name, "arguments": dict(use.arguments)} for use in message.uses]
    if message.answers is not None:
        said["answers"] = message.answers
    return {**said, "failed": True} if message.failed else said


def message_of(said: dict[str, Any]) -> Message:
    """Return the message for such an object."""
    uses = tuple(ToolUse(use["id"], use["name"], use["arguments"]) for use in said.get("uses", ()))
    return Message(Role(said["role"]), said["text"], uses, said.get("answers"), said.get("failed", False))


def line(said: dict[str, Any]) -> str:
    """Return a message as one line of ASCII. It can be stored even if the text has unpaired surrogates.

    >>> line(document(Message(Role.USER, "hello")))
    '{"role":"user","text":"hello"}'
    """
    return json.dumps(said, separators=(",", ":"), sort_keys=True)


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

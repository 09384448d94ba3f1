"""What must be true of every step, whoever made it. Written against the row alone: no rule here asks the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from keptwork.core.lifecycles import Right

if TYPE_CHECKING:
    from tests.model.world import Rec

FINAL_STAYS = "final states never change"
ONLY_GROWS = "(epoch, rank of state) only grows"
ONE_EVENT = "one event per applied move, sequence gapless"
ONCE = "a request is written at most once"
HOLDER_ONLY = "a write by a non-holder changes nothing"
NOT_EARLY = "nothing is reaped before its lease is over"
ONE_CLAIM = "one claim per epoch"
ATTEMPTS = "starts not given back are the attempts, and within the limit"
ACKNOWLEDGED = "an acknowledged success is final"
ONE_HOLDER = "at most one actor could write as the holder"

ORDER = ("queued", "assigned", "running")


class Deed(NamedTuple):
    """Who did what: the truth about the actor as the row has it, not as the actor believes."""

    role: str
    trigger: str
    epoch: int
    right: Right | None = None
    owns: bool = False
    written_before: bool = False


def broken(before: Rec, after: Rec, deed: Deed, max_attempts: int) -> tuple[str, ...]:
    """The invariants that this step breaks, by name."""
    return tuple(_broken(before, after, deed, max_attempts)) if after != before else ()


def _broken(before: Rec, after: Rec, deed: Deed, max_attempts: int) -> Iterator[str]:
    moved = after.seq != before.seq
    if final(before):
        yield FINAL_STAYS
    if moved and (after.epoch, rank(after)) <= (before.epoch, rank(before)):
        yield ONLY_GROWS
    if moved and not after.seq == after.events == before.events + 1:
        yield ONE_EVENT
    if moved and deed.written_before:
        yield ONCE
    if deed.role in ("worker", "remnant") and deed.trigger != "claim" and not _holds(before, deed):
        yield HOLDER_ONLY
    if deed.role == "reaper" and before.lease != 0:
        yield NOT_EARLY
    if deed.trigger == "claim" and before.claimed >> before.epoch & 1:
        yield ONE_CLAIM
    if not 0 <= after.attempts == after.starts <= max_attempts:
        yield ATTEMPTS
    if after.acknowledged and after.state != "succeeded":
        yield ACKNOWLEDGED


def _holds(rec: Rec, deed: Deed) -> bool:
    """The row names this actor, under the epoch of its token, and the lease is not over."""
    return deed.owns and deed.epoch == rec.epoch and bool(rec.lease)


def final(rec: Rec) -> bool:
    return rec.state not in ORDER


def rank(rec: Rec) -> int:
    """Queued, assigned, running, then the end whichever it is."""
    return ORDER.index(rec.state) if rec.state in ORDER else len(ORDER)

"""One job, its lease, and everybody who writes to it: what each may do next, and what that does to the record.

Decisions are the kernel's own (`decide`), and a request is applied only if the kernel's own compare-and-set says so
(`Change.still_holds`); renewals go through the shipped SQL. What a move does to the row besides mirrors
`store/sql/moves.sql`. A request is decided on the asker's own, perhaps long outdated copy. It arrives at once, and the
reply may be lost (the asker may then repeat it, or think better of it); or it strays, arrives when nobody expects it
any more, and perhaps several times. A doubled request is one that arrives and strays.

Clocks are against us: a worker never notices that its lease is over, a reaper always believes that it is. So only the
check made in the write itself protects the record.

Nobody has a name here: an actor knows whether the record is *its own*. That makes workers interchangeable, and what one
actor may do depends on nothing but the record and the actor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import apsw

from keptwork.core.lifecycles import JOB, Change, Lifecycle, Right, Token, decide
from keptwork.errors import InvalidTransition
from keptwork.store.dialect import SQLITE
from keptwork.store.statements import Catalogue
from tests.model.invariants import ACKNOWLEDGED, Deed, broken

NOW = 0  # times are ticks from now on
LEASE_TICKS = 2
ME, SOMEBODY_ELSE = 1, 2
LEASED = ("assigned", "running")

# Who asks for what, and with which facts.
MOVES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "worker": {
        "start": {},
        "succeed": {},
        "retry": {},
        "snooze": {},
        "release": {},
        "fail": {"permanent": True},
        "cancel": {},
        "dead_letter": {"reason_code": "validation_failed"},
    },
    "reaper": {
        "expire": {},
        "fail": {},
        "dead_letter": {"reason_code": "exhausted_retries"},
    },
    "operator": {
        "cancel": {},
        "release": {},
        "dead_letter": {"reason_code": "policy_violation"},
    },
}
DELAYS = {"retry": 1, "snooze": 1}


class Rec(NamedTuple):
    """The row, with times as ticks from now; below the line, what only the invariants look at."""

    state: str = "queued"
    seq: int = 1
    epoch: int = 0
    attempts: int = 0
    lease: int | None = None
    wait: int = 0
    # ---
    claimed: int = 0  # one bit for each epoch in which the job was claimed
    events: int = 1
    starts: int = 0  # without those given back
    acknowledged: bool = False  # somebody was told that it succeeded


class Copy(NamedTuple):
    """What a worker believes the row to be."""

    state: str
    seq: int
    epoch: int
    attempts: int


class Message(NamedTuple):
    """A request on its way: a decided change, or a renewal (which only names its epoch)."""

    trigger: str
    from_state: str
    seq: int
    epoch: int
    right: Right | None


class Actor(NamedTuple):
    """A worker, what a crashed worker left behind, the reaper or an operator."""

    role: str
    owns: bool = False  # the row names it as the owner
    asks_again: bool = False  # the reply to its claim was lost
    copy: Copy | None = None
    strays: tuple[Message, ...] = ()  # its requests that will arrive some time
    wrote: tuple[tuple[int, str], ...] = ()  # its own events that a repeated request could be answered with
    paused: bool = False


class Step(NamedTuple):
    """One thing that happens. `reply`: it reached the asker; `again`: the stray will arrive once more."""

    kind: str
    message: Message | None = None
    reply: bool = True
    again: bool = False


class Outcome(NamedTuple):
    """What a step leads to. `owner` says whom the row names then: the actor, nobody, or whom it named before."""

    step: Step
    rec: Rec
    actor: Actor
    owner: str = "same"
    accepted: bool | None = None
    remnant: Actor | None = None
    broken: tuple[str, ...] = ()


@dataclass
class Rules:
    """The lifecycle to drive, and how far."""

    lifecycle: Lifecycle = JOB
    renew_sql: str = field(default_factory=lambda: Catalogue(SQLITE)["renew"].sql)
    max_attempts: int = 2
    on_exhausted: str = "dead_letter"
    strays: int = 1  # of one actor
    pauses: bool = True
    left_out: frozenset[str] = frozenset()  # what nobody asks for, as "role trigger"

    def __post_init__(self) -> None:
        self._changes: dict[tuple[str, ...], Change] = {}
        self._renewal = Renewal(self.renew_sql)

    # --- what may happen

    def outcomes(self, rec: Rec, actor: Actor) -> Iterator[Outcome]:
        """Everything this actor, or a message of its, may do to the record next."""
        for message in dict.fromkeys(actor.strays):
            yield from self._late(rec, actor, message)
        if actor.role == "worker":
            yield from self._worker(rec, actor)
        elif actor.role != "remnant":  # the reaper and operators read anew for whatever they do
            for message in self.requests(actor.role, Copy(*rec[:4])):
                yield from self._asks(rec, actor, message)

    def _worker(self, rec: Rec, actor: Actor) -> Iterator[Outcome]:
        if actor.paused:
            yield Outcome(Step("resume"), rec, actor._replace(paused=False))
            return
        if actor.asks_again:
            yield self._claim_again(rec, actor)
        else:
            yield from self._claims(rec, actor)
        if actor != Actor("worker"):
            yield self._crash(rec, actor)
        if actor.copy:
            renewal = Message("renew", "", 0, actor.copy.epoch, None)
            for message in (*self.requests("worker", actor.copy), renewal):
                yield from self._asks(rec, actor, message)
            if self.pauses:
                yield Outcome(Step("pause"), rec, actor._replace(paused=True))

    def _crash(self, rec: Rec, actor: Actor) -> Outcome:
        """The process is gone and a new one has taken its place; its messages and its lease live on."""
        left = tidy(Actor("remnant", owns=actor.owns, strays=actor.strays, wrote=actor.wrote))
        return Outcome(Step("crash"), rec, Actor("worker"), remnant=left if left.owns or left.strays else None)

    # --- claims

    def _claims(self, rec: Rec, actor: Actor) -> Iterator[Outcome]:
        """The database chooses and moves in one statement, so there is no copy that could be old."""
        record = self.record(rec, None)
        decision = decide(self.lifecycle, record, "claim", now=NOW, worker_may_claim=True)
        if isinstance(decision, InvalidTransition):
            return
        after = self._moved(rec, decision)
        found = broken(rec, after, Deed("worker", "claim", decision.epoch), self.max_attempts)
        for reply in (True, False):
            copy = Copy(*after[:4]) if reply else None
            mine = actor._replace(owns=True, copy=copy, asks_again=not reply)
            yield Outcome(Step("claim", reply=reply), after, tidy(mine), "me", True, broken=found)

    def _claim_again(self, rec: Rec, actor: Actor) -> Outcome:
        copy = Copy(*rec[:4]) if actor.owns and rec.state in LEASED else None
        return Outcome(Step("claim_again"), rec, tidy(actor._replace(copy=copy, asks_again=False)), "same", bool(copy))

    # --- requests

    def requests(self, role: str, copy: Copy) -> list[Message]:
        """Every request that `decide` makes of the copy, by a clock that always speaks for the asker."""
        used = ((trigger, facts) for trigger, facts in MOVES[role].items() if f"{role} {trigger}" not in self.left_out)
        decided = (self._decided(role, copy, trigger, facts) for trigger, facts in used)
        return [message for message in decided if message]

    def _decided(self, role: str, copy: Copy, trigger: str, facts: Mapping[str, Any]) -> Message | None:
        lease = int(role != "reaper") if copy.state in LEASED else None
        record = self.record(Rec(*copy, lease=lease), ME)
        token = Token(ME, copy.epoch) if role == "worker" else None
        decision = decide(self.lifecycle, record, trigger, now=NOW, token=token, lease_over=role == "reaper", **facts)
        if isinstance(decision, InvalidTransition):
            return None
        message = Message(trigger, decision.from_state, decision.seq, decision.epoch, decision.right)
        self._changes[_identity(role, message)] = decision
        return message

    def change(self, role: str, message: Message) -> Change:
        """The kernel's decision that a message carries."""
        decision = self._changes[_identity(role, message)]
        return decision._replace(seq=message.seq, epoch=message.epoch)

    # --- arrivals

    def _asks(self, rec: Rec, actor: Actor, message: Message) -> Iterator[Outcome]:
        """A request arrives and is answered, or its answer is lost; or it strays."""
        after, left, owner, accepted, found = self.arrived(rec, actor, message)
        if actor.role == "worker":
            yield Outcome(Step("ask", message, reply=False), after, left, owner, accepted, broken=found)
        told, known = _told(left, message, accepted), _acknowledged(after, message, accepted)
        lied = (ACKNOWLEDGED,) if known.acknowledged and known.state != "succeeded" else ()
        yield Outcome(Step("ask", message), known, told, owner, accepted, broken=found + lied)
        if len(actor.strays) < self.strays:
            strays = tuple(sorted((*actor.strays, message), key=str))
            yield Outcome(Step("stray", message), rec, actor._replace(strays=strays))

    def _late(self, rec: Rec, actor: Actor, message: Message) -> Iterator[Outcome]:
        """A stray arrives, for the last time or not, or never does. Nobody hears the answer."""
        fewer = without(actor.strays, message)
        yield Outcome(Step("drop", message), rec, tidy(actor._replace(strays=fewer)))
        after, left, owner, accepted, found = self.arrived(rec, actor, message)
        for again in (False, True):
            kept = left if again else tidy(left._replace(strays=fewer))
            yield Outcome(Step("arrive", message, False, again), after, kept, owner, accepted, broken=found)

    def arrived(self, rec: Rec, actor: Actor, message: Message) -> tuple[Rec, Actor, str, bool, tuple[str, ...]]:
        """The record and the asker after the store has seen the request; whose the record is; what was answered; what
        it broke."""
        after, owner, accepted = self._applied(rec, actor, message)
        before = wrote(actor, message)
        deed = Deed(actor.role, message.trigger, message.epoch, message.right, actor.owns, before)
        found = broken(rec, after, deed, self.max_attempts)
        memory = {*actor.wrote, (message.seq, message.trigger)} if after.seq != rec.seq else actor.wrote
        left = actor._replace(wrote=tuple(sorted(memory)), owns=actor.owns and owner != "nobody")
        return after, tidy(left), owner, accepted, found

    def _applied(self, rec: Rec, actor: Actor, message: Message) -> tuple[Rec, str, bool]:
        """The store's write: by compare-and-set, or a repeat that the log already has under the same actor."""
        if message.trigger == "renew":
            renewed = self._renewal.renews(self.record(rec, ME if actor.owns else SOMEBODY_ELSE), message.epoch)
            return (rec._replace(lease=LEASE_TICKS) if renewed else rec), "same", renewed
        change = self.change(actor.role, message)
        if change.still_holds(self.record(rec, ME if actor.owns else SOMEBODY_ELSE), NOW) and self._legal(rec, change):
            after = self._moved(rec, change)
            return after, "nobody" if after.state == "queued" else "same", True
        return rec, "same", wrote(actor, message)

    def _legal(self, rec: Rec, change: Change) -> bool:
        """The database's own trigger: a declared move out of the state the row is in."""
        return any(state.name == rec.state for state in change.move.sources)

    # --- the row

    def record(self, rec: Rec, owner: int | None) -> dict[str, Any]:
        """The row as the kernel reads it."""
        return {
            "id": 1,
            "tenant_id": 1,
            "state": rec.state,
            "seq": rec.seq,
            "epoch": rec.epoch,
            "attempts": rec.attempts,
            "max_attempts": self.max_attempts,
            "on_exhausted": self.on_exhausted,
            "owner": owner if rec.state in LEASED else None,
            "lease_until": rec.lease,
            "run_at": rec.wait,
            "held_by": None,
            "parent_id": None,
            "limit_key": None,
            "step_id": None,
            "crew_id": None,
            "tree_id": None,
            "kind": "kind",
        }

    def _moved(self, rec: Rec, change: Change) -> Rec:
        """The row after the move: `moves.sql`, in Python."""
        trigger, target = change.move.trigger, change.move.target.name
        began, given_back = trigger == "start", _gives_back(trigger, rec.state)
        lease = LEASE_TICKS if trigger == "claim" else rec.lease if began else None
        claimed = rec.claimed | (1 << rec.epoch if trigger == "claim" else 0)
        return Rec(
            state=target,
            seq=rec.seq + 1,
            epoch=rec.epoch + change.move.raises_epoch,
            attempts=rec.attempts + began - given_back,
            lease=lease,
            wait=DELAYS.get(trigger, 0) if target == "queued" else 0,
            claimed=claimed,
            events=rec.events + 1,
            starts=rec.starts + began - given_back,
            acknowledged=rec.acknowledged,
        )


class Renewal:
    """The shipped `renew` statement, run on a row of its own."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._parameters = Catalogue(SQLITE)["renew"].parameters
        self._db = apsw.Connection(":memory:")
        self._db.execute("CREATE TABLE jobs (id, epoch, owner, state, lease_until)")

    def renews(self, row: Mapping[str, Any], epoch: int) -> bool:
        """Whether the worker ME, holding a token of that epoch, gets a longer lease."""
        self._db.execute("DELETE FROM jobs")
        columns = ("id", "epoch", "owner", "state", "lease_until")
        self._db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", [row[column] for column in columns])
        values = {"now": NOW, "lease_us": LEASE_TICKS, "id": row["id"], "epoch": epoch, "worker": ME}
        self._db.execute(self._sql, [values[name] for name in self._parameters])
        return self._db.changes() > 0


def _identity(role: str, message: Message) -> tuple[str, ...]:
    """What tells one decision from another besides its seq and epoch, which only say how old it is."""
    return ("worker" if role == "remnant" else role, message.trigger, message.from_state, str(message.right))


def _gives_back(trigger: str, state: str) -> bool:
    return trigger == "snooze" or (trigger == "release" and state == "running")


def ticked(rec: Rec) -> Rec:
    """One tick later."""
    return rec._replace(lease=rec.lease and rec.lease - 1, wait=max(rec.wait - 1, 0))


def _told(actor: Actor, message: Message, accepted: bool) -> Actor:
    """What the asker makes of the answer: a worker carries on with the job, or lets go of it."""
    copy = actor.copy
    if message.trigger == "renew" and accepted:
        return actor
    started = copy and accepted and message.trigger == "start"
    copy = Copy("running", copy.seq + 1, copy.epoch, copy.attempts + 1) if copy and started else None
    return tidy(actor._replace(copy=copy))


def _acknowledged(rec: Rec, message: Message, accepted: bool) -> Rec:
    return rec._replace(acknowledged=True) if accepted and message.trigger == "succeed" else rec


def without(messages: tuple[Message, ...], message: Message) -> tuple[Message, ...]:
    """One of these messages less."""
    place = messages.index(message)
    return messages[:place] + messages[place + 1 :]


def wrote(actor: Actor, message: Message) -> bool:
    """Whether the log shows that this actor made this very move before: seq, trigger and actor are the same."""
    return (message.seq, message.trigger) in actor.wrote


def tidy(actor: Actor) -> Actor:
    """Without the memory of events that no request of this actor can ask for any more."""
    if not actor.wrote:
        return actor
    asked = {message.seq for message in actor.strays} | ({actor.copy.seq} if actor.copy else set())
    return actor._replace(wrote=tuple(entry for entry in actor.wrote if entry[0] in asked))

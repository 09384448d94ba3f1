"""The transition kernel: what a lifecycle is, and the pure decision whether a record may make a move.

A lifecycle is data. `decide` takes a record, a trigger, and the facts. It returns a `Change` (what to write) or an
`InvalidTransition` (why not). It reads no clock, uses no database, and has no code for particular entities. The store
applies a `Change` with one guarded write, and the database rejects everything that is not declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from keptwork.core.lifecycle import check
from keptwork.errors import InvalidTransition


class Record(Protocol):
    """An entity as it was read: any object that gives its columns by name."""

    def __getitem__(self, column: str, /) -> Any: ...


Facts = Mapping[str, Any]
Guard = Callable[[Record, Facts], bool]


class Verb(StrEnum):
    """An operation of the engine. Each lifecycle maps it to a trigger and a state of its own."""

    CREATE = "create"
    VALIDATE = "validate"
    CLAIM = "claim"
    START = "start"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    RESUME = "resume"
    RECLAIM = "reclaim"
    EXPIRE = "expire"
    RELEASE = "release"
    SNOOZE = "snooze"
    GATE = "gate"
    APPROVE = "approve"
    REJECT = "reject"
    PAUSE = "pause"
    CANCEL = "cancel"
    DEAD_LETTER = "dead_letter"
    SKIP = "skip"
    RESET = "reset"
    TERMINATE = "terminate"
    TRIP = "trip"
    PROBE = "probe"
    CLOSE = "close"
    REOPEN = "reopen"
    OVERRIDE = "override"


class Right(Enum):
    """The right to move a leased record. The store checks it again in the write itself."""

    HOLDER = "the lease, still held under the same epoch"
    REAPER = "an expired lease"
    OPERATOR = "an operator or a policy"


class Token(NamedTuple):
    """Proof of a claim: its owner and its epoch. A pair of job and epoch is never given to two claims."""

    owner: int
    epoch: int


@dataclass(frozen=True, slots=True)
class State:
    """One state of a lifecycle.

    No move leaves a `final` state unless it says `leaves_final`. Entering a `started` state for the first time sets
    `started_at`. Entering a final state sets `completed_at`.
    """

    name: str
    final: bool = False
    started: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One declared move from some states to another.

    >>> Move("pause", Verb.PAUSE, (State("RUNNING"),), State("PAUSED")).trigger
    'pause'
    """

    trigger: str
    verb: Verb
    sources: tuple[State, ...]
    target: State
    event: str = ""
    when: str = ""
    guard: Guard | None = None
    rights: frozenset[Right] = frozenset()
    raises_epoch: bool = False
    leaves_final: bool = False
    first: Move | None = None

    @property
    def creates(self) -> bool:
        """Whether the move has no sources, so that it creates the record."""
        return not self.sources

    @property
    def events(self) -> int:
        """The number of events: a combined move has those of its `first` move, too."""
        return 1 if self.first is None else 2


@dataclass(frozen=True, slots=True)
class Note:
    """An event without a move: it takes a sequence number and leaves the state unchanged."""

    trigger: str
    event: str


OVERRIDE = "override"
"""The trigger of an override, which is not a move. It leads to any state and has its own event type."""


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Change(NamedTuple):
    """A decided move, ready to write, with the conditions that must still hold when it is written."""

    lifecycle: Lifecycle
    move: Move
    id: int
    tenant_id: int
    from_state: str
    seq: int
    epoch: int
    right: Right | None = None
    owner: int | None = None
    actor: str | None = None
    reason: str | None = None
    cause: str | None = None
    detail: str | None = None
    values: Mapping[str, Any] = NOTHING
    parent_id: int | None = None
    limit_key: str | None = None
    step_id: int | None = None
    crew_id: int | None = None
    tree_id: int | None = None
    kind: str | None = None

    @property
    def next_epoch(self) -> int:
        return self.epoch + self.move.raises_epoch

    def still_holds(self, record: Record, now: int) -> bool:
        """Return whether the record is still as it was when the move was decided. This is the store's WHERE clause, in
        Python."""
        return self.unmoved(record) and self.entitled(record, now)

    def unmoved(self, record: Record) -> bool:
        """Return whether nothing has moved the record since it was read: the compare-and-set itself."""
        return bool(record["seq"] == self.seq and record["epoch"] == self.epoch and record["state"] == self.from_state)

    def entitled(self, record: Record, now: int) -> bool:
        """Return whether the right that the move was decided under still exists. A record without a lease gives
        none."""
        return borne_out(self.right, self.owner, record, now)


@dataclass(frozen=True)
class Lifecycle:
    """States and moves of one kind of entity, checked when the declaring module is imported.

    A pair names two moves that may be made in one write, one right after the other. Each still has its own seq and its
    own event. `linked` names the columns that identify the other records a move affects; a change carries their values.
    """

    name: str
    table: str
    prefix: str
    states: tuple[State, ...]
    moves: tuple[Move, ...]
    notes: tuple[Note, ...] = ()
    shares_table: bool = False
    pairs: tuple[tuple[str, str], ...] = ()
    linked: tuple[str, ...] = ()
    _by_trigger: dict[tuple[str, str], tuple[Move, ...]] = field(default_factory=dict, init=False, repr=False)
    _by_verb: dict[tuple[str, Verb], tuple[Move, ...]] = field(default_factory=dict, init=False, repr=False)
    _overrides: dict[str, Move] = field(default_factory=dict, init=False, repr=False)
    _pairs: dict[tuple[Verb, Verb], Move] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        named = tuple(move if move.event else _named(self.name, move) for move in self.moves)
        object.__setattr__(self, "moves", named)
        for move in self.moves:
            for source in move.sources:
                _append(self._by_trigger, (source.name, move.trigger), move)
                _append(self._by_verb, (source.name, move.verb), move)
        for state in self.states:
            self._overrides[state.name] = self._override_to(state)
        check(self)
        for pair in self.pairs:
            first, second = (self.move(trigger) for trigger in pair)
            self._pairs[first.verb, second.verb] = _changed(second, sources=first.sources, first=first)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def creation(self) -> Move:
        """The only move without a source."""
        return next(move for move in self.moves if move.creates)

    @property
    def initial(self) -> State:
        return self.creation.target

    @property
    def fenced(self) -> bool:
        """Whether an epoch fences claims. If so, an override raises the epoch, which voids every claim."""
        return any(move.raises_epoch for move in self.moves)

    @property
    def override_event(self) -> str:
        """The event type of an override, distinct from that of every move."""
        return f"{self.name.replace('-', '_')}_overridden"

    def override_to(self, state: str) -> Move:
        """Return what an override to this state writes. It is not one of the lifecycle's moves."""
        return self._overrides[state]

    def _override_to(self, state: State) -> Move:
        return Move(
            OVERRIDE,
            Verb.OVERRIDE,
            self.states,
            state,
            self.override_event,
            raises_epoch=self.fenced,
            leaves_final=True,
        )

    @property
    def reserved_triggers(self) -> frozenset[str]:
        """The names that no move may have, because operations other than moves use them."""
        return frozenset((OVERRIDE, *(note.trigger for note in self.notes)))

    @property
    def triggers(self) -> tuple[str, ...]:
        """Every trigger of an existing record, each once, in declared order."""
        return tuple(dict.fromkeys(move.trigger for move in self.moves if not move.creates))

    def state(self, name: str) -> State:
        """Return the declared state with this name."""
        return next(state for state in self.states if state.name == name)

    def move(self, trigger: str) -> Move:
        """Return the first declared move with this trigger."""
        return next(move for move in self.moves if move.trigger == trigger)

    def pair(self, first: Verb, second: Verb) -> Move:
        """Return a declared pair as one combined move."""
        return self._pairs[first, second]

    def rank(self, name: str) -> int:
        """Return the position of a state in the declared order. Within one epoch, the rank of a job only increases."""
        return next(place for place, state in enumerate(self.states) if state.name == name)

    def leading_out_of(self, state: str, trigger: str | Verb) -> tuple[Move, ...]:
        """Return the candidate moves from a state, by trigger or by the engine's operation, in declared order."""
        if isinstance(trigger, Verb):
            return self._by_verb.get((state, trigger), ())
        return self._by_trigger.get((state, trigger), ())

    def allowed_from(self, state: str) -> tuple[str, ...]:
        """Return the triggers that a record in this state accepts, whatever their guards decide."""
        sources = (move.trigger for move in self.moves if any(s.name == state for s in move.sources))
        return tuple(dict.fromkeys(sources))


def decide(
    lifecycle: Lifecycle,
    record: Record,
    trigger: str | Verb,
    *,
    now: int = 0,
    token: Token | None = None,
    lease_over: bool = False,
    actor: str | None = None,
    reason: str | None = None,
    cause: str | None = None,
    detail: str | None = None,
    values: Mapping[str, Any] = NOTHING,
    then: Verb | None = None,
    **facts: Any,
) -> Change | InvalidTransition:
    """Return the change to write, or the reason why the record may not make the move.

    The first move whose guard agrees wins. With a `token`, the lease holder makes the move; with `lease_over`, the
    reaper; with neither, an operator. The actor and its reasons (`actor`, `reason`, `cause`, `detail`) go into the
    event, and `values` into further columns of the row.

    With `then`, the move is the first of a declared pair, and both are written together. Nothing can happen between
    them, so only the first is checked: the second must need neither a right nor a guard.

    >>> from keptwork.core.lifecycles import RUN_STEP, WORKER
    >>> idle = {"id": 7, "tenant_id": 1, "state": "IDLE", "seq": 1, "epoch": 0}
    >>> decide(WORKER, idle, "start_task").move.target.name
    'RUNNING'
    >>> step = {"id": 7, "tenant_id": 1, "state": "PENDING", "seq": 1, "epoch": 0}
    >>> decide(RUN_STEP, step, Verb.START, then=Verb.SUCCEED, dependencies_met=True).move.target.name
    'SUCCEEDED'
    """
    right = Right.HOLDER if token else Right.REAPER if lease_over else Right.OPERATOR
    because = ""
    for move in lifecycle.leading_out_of(record["state"], trigger):
        if move.rights and not (right in move.rights and _fenced(right, token, record, now)):
            because = " or ".join(r.value for r in Right if r in move.rights)
        elif move.guard and not move.guard(record, {"now": now, **facts}):
            because = move.when
        else:
            return Change(
                lifecycle,
                move if then is None else lifecycle.pair(move.verb, then),
                record["id"],
                record["tenant_id"],
                record["state"],
                record["seq"],
                record["epoch"],
                right if move.rights else None,
                token.owner if token else None,
                actor,
                reason,
                cause,
                detail,
                values,
                *[record[column] for column in lifecycle.linked],
            )
    return _refusal(lifecycle, record, trigger, because)


def override(
    lifecycle: Lifecycle, record: Record, state: str, *, reason: str, actor: str | None = None, cause: str | None = None
) -> Change:
    """Return the change that corrects a record manually, from any state to any declared state. It needs a reason.

    >>> from keptwork.core.lifecycles import WORKER
    >>> gone = {"id": 7, "tenant_id": 1, "state": "TERMINATED", "seq": 4, "epoch": 0}
    >>> override(WORKER, gone, "IDLE", reason="it was the wrong one").move.event
    'worker_overridden'
    """
    if not reason.strip():
        raise ValueError("an override needs a reason")
    linked = [record[column] for column in lifecycle.linked]
    seen = (record["id"], record["tenant_id"], record["state"], record["seq"], record["epoch"])
    return Change(
        lifecycle, lifecycle.override_to(state), *seen, None, None, actor, reason, cause, None, NOTHING, *linked
    )


def insist(decision: Change | InvalidTransition) -> Change:
    """Return the change, or raise the refusal."""
    if isinstance(decision, InvalidTransition):
        raise decision
    return decision


def _fenced(right: Right, token: Token | None, record: Record, now: int) -> bool:
    if token is None:
        return borne_out(right, None, record, now)
    return bool(token.epoch == record["epoch"]) and borne_out(right, token.owner, record, now)


def borne_out(right: Right | None, owner: int | None, record: Record, now: int) -> bool:
    """Return whether the lease gives this right now. Without a lease, a record is neither held nor expired."""
    if right is Right.HOLDER:
        lease_until = record["lease_until"]
        return lease_until is not None and bool(lease_until > now and record["owner"] == owner)
    if right is Right.REAPER:
        lease_until = record["lease_until"]
        return lease_until is not None and bool(lease_until <= now)
    return True


def _refusal(lifecycle: Lifecycle, record: Record, trigger: str | Verb, because: str) -> InvalidTransition:
    return InvalidTransition(
        lifecycle=lifecycle.name,
        id=record["id"],
        from_state=record["state"],
        trigger=str(trigger),
        allowed=lifecycle.allowed_from(record["state"]),
        because=because,
    )


def _named(lifecycle: str, move: Move) -> Move:
    """Return the move with the default event name, made from the entity and the trigger."""
    return _changed(move, event=f"{lifecycle.replace('-', '_')}_{move.trigger}")


def _changed(move: Move, **fields: Any) -> Move:
    values = {name: getattr(move, name) for name in move.__slots__}
    return Move(**{**values, **fields})


def _append(index: dict[Any, tuple[Move, ...]], key: object, move: Move) -> None:
    index[key] = (*index.get(key, ()), move)

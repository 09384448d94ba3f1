"""Breadth first through every reachable state of the model.

Three things keep the number of states down without leaving any behaviour out. Workers are interchangeable, so states
that differ only in who is who are one. Sequence numbers and epochs are compared but never counted, so the row always
has the same ones and what is older is numbered back from there: the exploration covers any number of epochs. And what
an actor may do depends on the record and on itself alone, so it is worked out once for each such pair.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from tests.model.invariants import ONE_HOLDER, final
from tests.model.world import Actor, Copy, Message, Outcome, Rec, Rules, Step, ticked

T = TypeVar("T", bound=Hashable)
Held = TypeVar("Held", Message, Copy)
State = tuple[int, ...]  # record, reaper, operator, workers in order, then remnants in order
SEQ, EPOCH = 100, 100  # of the row, always; what is older is numbered back from here


class Bounds(NamedTuple):
    """How much of the world is looked at."""

    workers: int = 2
    strays: int = 1  # messages on their way at one time, over all actors
    remnants: int = 1
    states: int = 10_000_000


class Shift(NamedTuple):
    """What a move of the record means to everybody else: they fall behind, and perhaps lose it."""

    moved: int
    epochs: int
    disowned: bool


class Known(NamedTuple):
    """Outcomes that come to the same, in numbers, already seen from the record they lead to."""

    rec: int
    actor: int
    remnant: int | None
    strays: int  # that it adds to those on their way
    shifts: dict[int, int] | None  # everybody else, as seen from the record it leads to
    shift: Shift
    role: str
    number: int  # of this entry
    outcomes: list[tuple[str, tuple[str, ...]]]  # kind of step and what it breaks, for each that leads to the same


TICK = Known(0, 0, None, 0, None, Shift(0, 0, False), "clock", 0, [("tick", ())])


@dataclass
class Report:
    """What an exploration saw. `broken` has the first, so the shortest, way to break each invariant."""

    states: int = 0
    transitions: int = 0
    seconds: float = 0.0
    stuck: int = 0  # states from which the job cannot end unless an operator ends it
    complete: bool = True
    kinds: dict[str, list[State]] = field(default_factory=dict)  # the shortest way to a step of each kind, and past it
    broken: dict[str, list[State]] = field(default_factory=dict)

    def __str__(self) -> str:
        rate = self.states / max(self.seconds, 0.001)
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.seconds:.1f} s ({rate:,.0f} states/s), "
            f"{self.stuck} states without an end"
        )


class Numbers(Generic[T]):
    """Gives each value a number, in the order of appearance."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._of: dict[T, int] = {}

    def __getitem__(self, value: T) -> int:
        number = self._of.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Explorer:
    """All states of one set of rules, within bounds."""

    def __init__(self, rules: Rules, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - immutable
        self.rules, self.bounds = rules, bounds
        self.recs: Numbers[Rec] = Numbers()
        self.actors: Numbers[Actor] = Numbers()
        self._known: dict[tuple[int, int], list[Known]] = {}
        self._shifts: dict[Shift, dict[int, int]] = {}
        self._strays: list[int] = []  # how many each actor has
        self._entries = 0
        self._noted: set[int] = set()
        self._writes: dict[tuple[int, int], bool] = {}
        self._workers_end = 3 + bounds.workers
        self.seen: dict[State, int] = {}
        self.states: list[State] = []
        self.parents = array("i")
        self.report = Report()

    @property
    def initial(self) -> State:
        roles = ("reaper", "operator", *["worker"] * self.bounds.workers)
        return (self.recs[Rec(seq=SEQ, events=SEQ, epoch=EPOCH)], *(self._number(Actor(role)) for role in roles))

    def run(self, *, ends: bool = True) -> Report:
        """Visit everything; with `ends`, also ask of every state whether the job can still end."""
        gc.disable()  # millions of tuples and no cycles: looking for some takes longer than the exploration
        try:
            return self._explore(ends)
        finally:
            gc.enable()

    def _explore(self, ends: bool) -> Report:
        began = time.perf_counter()
        sources, targets = array("i"), array("i")
        self._visit(self.initial, -1)
        place = 0
        while place < len(self.states) and self.report.complete:
            state = self.states[place]
            self._check_holders(state, place)
            for known, after in self.successors(state):
                number = self._visit(after, place)
                self.report.transitions += len(known.outcomes)
                if known.number not in self._noted:
                    self._note(known, place, after)
                if ends and known.role != "operator":
                    sources.append(place)
                    targets.append(number)
            place += 1
            self.report.complete = len(self.states) < self.bounds.states
        self.report.states = len(self.states)
        self.report.stuck = self._stuck(sources, targets) if ends and self.report.complete else 0
        self.report.seconds = time.perf_counter() - began
        return self.report

    def _note(self, known: Known, place: int, after: State) -> None:
        """Keeps the way to whatever is seen for the first time."""
        self._noted.add(known.number)
        for kind, broken in known.outcomes:
            if kind not in self.report.kinds:
                self.report.kinds[kind] = [*self.path(place), after]
            for name in broken:
                self.report.broken.setdefault(name, [*self.path(place), after])

    def _visit(self, state: State, parent: int) -> int:
        number = self.seen.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self.parents.append(parent)
        return number

    def path(self, number: int) -> list[State]:
        """The states on the shortest way to a state, from the first on."""
        way = []
        while number >= 0:
            way.append(self.states[number])
            number = self.parents[number]
        return way[::-1]

    def state_of(self, rec: Rec, actors: Sequence[Actor]) -> State:
        """The number of a row and its actors (reaper, operator, workers, remnants) under their real seqs and epochs."""
        shift = Shift(rec.seq - SEQ, rec.epoch - EPOCH, False)
        numbers = [self._number(_left_behind(actor, shift)) for actor in actors]
        end = self._workers_end - 1
        remnants = sorted(filter(self._matters, numbers[end:]))
        return (self.recs[_renumbered(rec, shift)], *numbers[:2], *sorted(numbers[2:end]), *remnants)

    # --- steps

    def successors(self, state: State) -> Iterator[tuple[Known, State]]:
        """Every step and the state after it."""
        rec = state[0]
        yield from self._ticks(state)
        room = self.bounds.strays - sum([self._strays[actor] for actor in state[1:]])
        full = len(state) - self._workers_end >= self.bounds.remnants
        for place, actor in enumerate(state):
            if place == 0 or actor in state[1:place]:
                continue  # the record; or what a twin of this actor has done already
            for known in self._known.get((rec, actor)) or self._outcomes(rec, actor):
                if known.strays <= room and not (full and known.remnant is not None):
                    yield known, self._after(state, place, known)

    def _ticks(self, state: State) -> Iterator[tuple[Known, State]]:
        later = self.recs[ticked(self.recs.values[state[0]])]
        if later != state[0]:
            yield TICK, (later, *state[1:])

    def _outcomes(self, rec: int, actor: int) -> list[Known]:
        before, mine = self.recs.values[rec], self.actors.values[actor]
        known: dict[tuple[int | None, ...], Known] = {}
        for outcome in self.rules.outcomes(before, mine):
            entry = self._numbered(outcome, before, mine)
            first = known.setdefault((entry.rec, entry.actor, entry.remnant, *entry.shift), entry)
            first.outcomes.append((kind_of(outcome.step), outcome.broken))
        self._known[rec, actor] = list(known.values())
        return self._known[rec, actor]

    def _numbered(self, outcome: Outcome, rec: Rec, before: Actor) -> Known:
        shift = Shift(outcome.rec.seq - rec.seq, outcome.rec.epoch - rec.epoch, outcome.owner != "same")
        left = len(outcome.actor.strays) + len(outcome.remnant.strays if outcome.remnant else ())
        self._entries += 1
        return Known(
            rec=self.recs[_renumbered(outcome.rec, shift)],
            actor=self._number(_left_behind(outcome.actor, shift._replace(disowned=False))),
            remnant=None if outcome.remnant is None else self._number(outcome.remnant),
            strays=left - len(before.strays),
            shifts=self._shifts.setdefault(shift, {}) if any(shift) else None,
            shift=shift,
            role=before.role,
            number=self._entries,
            outcomes=[],
        )

    def _after(self, state: State, place: int, known: Known) -> State:
        """The state after an outcome, in order: interchangeable actors sorted, empty remnants gone."""
        end = self._workers_end
        actors = list(state) if known.shifts is None else self._all_shifted(state, known.shifts, known.shift)
        actors[place] = known.actor
        workers = sorted(actors[3:end])
        if len(actors) == end and known.remnant is None:
            return (known.rec, actors[1], actors[2], *workers)
        remnants = actors[end:] if known.remnant is None else [*actors[end:], known.remnant]
        return (known.rec, actors[1], actors[2], *workers, *sorted(filter(self._matters, remnants)))

    def _all_shifted(self, state: State, shifts: dict[int, int], shift: Shift) -> list[int]:
        for actor in state[1:]:
            if actor not in shifts:
                shifts[actor] = self._number(_left_behind(self.actors.values[actor], shift))
        return [0, *[shifts[actor] for actor in state[1:]]]

    def _number(self, actor: Actor) -> int:
        number = self.actors[actor]
        if number == len(self._strays):
            self._strays.append(len(actor.strays))
        return number

    def _matters(self, remnant: int) -> bool:
        value = self.actors.values[remnant]
        return value.owns or bool(value.strays)

    # --- what is asked of states

    def _check_holders(self, state: State, number: int) -> None:
        if sum(self._could_write(state[0], actor) for actor in state[3:]) > 1:
            self.report.broken.setdefault(ONE_HOLDER, self.path(number))

    def _could_write(self, rec: int, actor: int) -> bool:
        key = (rec, actor)
        if key not in self._writes:
            self._writes[key] = could_write(self.rules, self.recs.values[rec], self.actors.values[actor])
        return self._writes[key]

    def _stuck(self, sources: array[int], targets: array[int]) -> int:
        """How many states have no way to an end; found by walking back from the ends."""
        ends = [number for number, state in enumerate(self.states) if final(self.recs.values[state[0]])]
        reached = _walked_back(len(self.states), sources, targets, ends)
        return reached.count(0)


def could_write(rules: Rules, rec: Rec, actor: Actor) -> bool:
    """Whether a request of this worker, on its way or still to be made, would be let through now."""
    asked = rules.requests("worker", actor.copy) if actor.copy else []
    arrivals = (rules.arrived(rec, actor, message)[0] for message in (*actor.strays, *asked))
    return any(after.seq != rec.seq for after in arrivals)


def _renumbered(rec: Rec, shift: Shift) -> Rec:
    """The record under the fixed numbers; of the epochs that were claimed only the present one can matter again."""
    claimed = rec.claimed & 1 << rec.epoch
    claimed = claimed >> shift.epochs if shift.epochs >= 0 else claimed << -shift.epochs
    seq, events = rec.seq - shift.moved, rec.events - shift.moved
    return rec._replace(seq=seq, events=events, epoch=rec.epoch - shift.epochs, claimed=claimed)


def _left_behind(actor: Actor, shift: Shift) -> Actor:
    """The actor as seen from the moved record: what it holds is older, and how much older does not matter."""
    held: list[Message | Copy] = [*actor.strays, *([actor.copy] if actor.copy else [])]
    seqs = _ranks((thing.seq - shift.moved for thing in held if thing.seq), SEQ) | {-shift.moved: 0}
    epochs = _ranks((thing.epoch - shift.epochs for thing in held), EPOCH)

    def older(thing: Held) -> Held:
        return thing._replace(seq=seqs[thing.seq - shift.moved], epoch=epochs[thing.epoch - shift.epochs])

    return actor._replace(
        owns=actor.owns and not shift.disowned,
        copy=older(actor.copy) if actor.copy else None,
        strays=tuple(sorted(map(older, actor.strays), key=str)),
        wrote=tuple(sorted((seqs[seq - shift.moved], trigger) for seq, trigger in actor.wrote)),
    )


def _ranks(numbers: Iterable[int], newest: int) -> dict[int, int]:
    """The present number stays, older ones close up behind it."""
    older = sorted({number for number in numbers if number < newest}, reverse=True)
    return {newest: newest} | {number: newest - place for place, number in enumerate(older, 1)}


def kind_of(step: Step) -> str:
    """What happened, told apart as finely as a trace should cover."""
    detail = f" {step.message.trigger}" if step.message else ""
    asker = f" by {step.message.right.name.lower()}" if step.message and step.message.right else ""
    fate = ("" if step.reply else ", reply lost") + (", doubled" if step.again else "")
    return f"{step.kind}{detail}{asker}{fate}"


def _walked_back(count: int, sources: array[int], targets: array[int], ends: Iterable[int]) -> bytearray:
    """Which states lead to one of the ends. Edges are chained by target: `first` and `following` are linked lists."""
    first, following = array("i", [-1]) * count, array("i", [-1]) * len(targets)
    for edge, target in enumerate(targets):
        following[edge] = first[target]
        first[target] = edge
    reached, waiting = bytearray(count), list(ends)
    for end in waiting:
        reached[end] = 1
    while waiting:
        edge = first[waiting.pop()]
        while edge >= 0:
            source = sources[edge]
            if not reached[source]:
                reached[source] = 1
                waiting.append(source)
            edge = following[edge]
    return reached

"""Decide what happens next in a flow, from the outcomes of its steps. Pure.

The engine needs two decisions: which steps can start now, and what the start means for each of them. Both follow from
the definition, the phases of the steps around the finished ones, and the values that they refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from keptwork.core.decide import Lifecycle, Verb
from keptwork.flows import expression, program_output
from keptwork.flows.definition import INPUTS, ITEM, Flow, Step
from keptwork.flows.expression import Absent, Look, NotYet, Reference, Wrong

# Map the state of a step, in any lifecycle, to its meaning for the engine.


class Phase(Enum):
    """The progress of a step."""

    WAITING = "it has not begun"
    ACTIVE = "it has begun, and will go on"
    SATISFIED = "it is done: what comes after it may begin"
    FAILED = "it failed for good"
    GONE = "it was given up"


_SATISFY = (Verb.SUCCEED, Verb.SKIP, Verb.APPROVE)
_FAIL = (Verb.FAIL, Verb.REJECT, Verb.EXPIRE)


@cache
def phases(lifecycle: Lifecycle) -> dict[str, Phase]:
    """Return the phase of each state by its name, derived from the moves that lead to the state.

    >>> from keptwork.core.lifecycles import WORKSTREAM_STEP
    >>> phases(WORKSTREAM_STEP)["S_SKIPPED"]
    <Phase.SATISFIED: 'it is done: what comes after it may begin'>
    """
    found = {state.name: Phase.ACTIVE for state in lifecycle.states}
    for verbs, meaning in (((Verb.CANCEL,), Phase.GONE), (_FAIL, Phase.FAILED), (_SATISFY, Phase.SATISFIED)):
        found |= {move.target.name: meaning for move in lifecycle.moves if move.verb in verbs}
    return {**found, lifecycle.initial.name: Phase.WAITING}


@cache
def flow_phases(lifecycle: Lifecycle) -> dict[str, Phase]:
    """Return, for each state of a flow by its name, its meaning for the flow's steps.

    >>> from keptwork.core.lifecycles import WORKSTREAM
    >>> flow_phases(WORKSTREAM)["S_RETRYING"]
    <Phase.FAILED: 'it failed for good'>
    """
    failing = {move.target.name for move in lifecycle.moves if move.verb in (Verb.FAIL, Verb.RETRY)}
    found = {state.name: Phase.FAILED if state.name in failing else Phase.ACTIVE for state in lifecycle.states}
    return found | {state.name: Phase.GONE for state in lifecycle.states if state.final}


# Prepare a definition for the engine, with lookups of predecessors and successors.


@dataclass(frozen=True, slots=True)
class Shape:
    """A flow, its steps by name, and the predecessors and successors of each step.

    >>> flow = Flow.model_validate({"name": "f", "steps": [{"id": "a", "command": ["true"]},
    ...     {"id": "b", "command": ["true"], "depends_on": ["a"]}]})
    >>> Shape.of(flow).roots, sorted(Shape.of(flow).around(["a"]))
    (['a'], ['a', 'b'])
    """

    flow: Flow
    steps: Mapping[str, Step]
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, flow: Flow) -> Shape:
        before = {name: tuple(names) for name, names in flow.dependencies.items()}
        after: dict[str, list[str]] = {name: [] for name in before}
        for name, names in before.items():
            for earlier in names:
                after[earlier].append(name)
        steps = {step.id: step for step in flow.steps}
        return cls(flow, steps, before, {name: tuple(names) for name, names in after.items()})

    @property
    def order(self) -> Sequence[str]:
        """The steps, each after its predecessors. The order of the file is kept if it already satisfies that.

        >>> flow = Flow.model_validate({"name": "f", "steps": [{"id": "b", "command": ["true"], "depends_on": ["a"]},
        ...     {"id": "a", "command": ["true"]}]})
        >>> Shape.of(flow).order
        ['a', 'b']
        """
        seen: set[str] = set()
        for name, before in self.before.items():
            if not seen.issuperset(before):
                return list(TopologicalSorter(self.before).static_order())
            seen.add(name)
        return list(self.before)

    @property
    def roots(self) -> list[str]:
        """The steps without predecessors."""
        return [name for name, names in self.before.items() if not names]

    def around(self, ended: Iterable[str]) -> set[str]:
        """Return these steps, their successors, and all predecessors of those: everything that matters when these
        finish."""
        found = set(ended)
        for name in list(found):
            for later in self.after[name]:
                found.add(later)
                found.update(self.before[later])
        return found


MOST_ITEMS = 10_000
FIRST_PAUSE_US, LONGEST_PAUSE_US = 1_000_000, 60_000_000


class Begin(Enum):
    """What happens when a step starts."""

    JOB = "a job is enqueued"
    GATE = "somebody is asked"
    EXPAND = "it runs once for each element of a list"
    SUBFLOW = "another flow is started"
    CREW = "a crew is submitted"
    SKIP = "its condition is not met"
    FAIL = "it cannot begin"


class Beginning(NamedTuple):
    """How a step starts. `items` are the items of its `for_each`, and `why` is the reason for a skip or failure."""

    how: Begin
    items: tuple[Any, ...] = ()
    why: str = ""


_HOW = {"approval": Begin.GATE, "flow": Begin.SUBFLOW, "crew": Begin.CREW}


def ready(shape: Shape, phases: Mapping[str, Phase], ended: Iterable[str]) -> list[str]:
    """Return the steps that are ready now, among the successors of the finished steps."""
    later = dict.fromkeys(name for earlier in ended for name in shape.after[earlier])
    return [
        name
        for name in later
        if phases[name] is Phase.WAITING and all(phases[one] is Phase.SATISFIED for one in shape.before[name])
    ]


def beginning(step: Step, look: Look) -> Beginning:
    """Return how a step starts, given the current values."""
    try:
        if step.when is not None and not step.sifts and not expression.met(expression.condition(step.when), look):
            return Beginning(Begin.SKIP, why=unmet(step))
        if step.for_each is not None:
            return Beginning(Begin.EXPAND, _items(step.for_each.items, look))
    except Wrong as error:
        return Beginning(Begin.FAIL, why=str(error))
    return Beginning(_HOW.get(step.kind, Begin.JOB))


def unmet(step: Step) -> str:
    """Return the reason why a step, or an item of its list, is skipped."""
    return f"when: {step.when}"


def _items(said: Any, look: Look) -> tuple[Any, ...]:
    found = expression.filled(said, look)
    if not isinstance(found, list):
        raise Wrong(f"for_each needs a list; {said} is {type(found).__name__}")
    if len(found) > MOST_ITEMS:
        raise Wrong(f"for_each has {len(found):,} elements; {MOST_ITEMS:,} at most can be")
    return tuple(found)


def wanted_at_start(step: Step) -> list[Reference]:
    """Return the references whose values decide how a step starts."""
    asked = step.when is not None and not step.sifts
    found = list(expression.condition(step.when or "").references.values()) if asked else []
    return found + (list(expression.references(step.for_each.items)) if step.for_each is not None else [])


class NoOutput(NamedTuple):
    """A placeholder for the output of a step that has none.

    `why` is the reason, without the name of the step. `later` is whether there might be an output later.
    """

    why: str
    later: bool = False


NO_ITEM = NoOutput("is only known for each item of a list", later=True)
DID_NOT_RUN = NoOutput("did not run")


def looking(values: Mapping[str, Any], item: Any = NO_ITEM, *, cut: bool = False) -> Look:
    """Return a lookup of references.

    `values` has the outputs of steps by name, and `inputs` and `flow`. Null is a value like any other. `cut` accepts
    truncated program output.
    """

    def look(wanted: Reference) -> Any:
        found: Any = item if wanted.root == ITEM else values.get(wanted.root, DID_NOT_RUN)
        if isinstance(found, NoOutput):
            raise (NotYet if found.later else Absent)(f"{wanted.root} {found.why}")
        if wanted.root == INPUTS and wanted.path and wanted.path[0] not in found:
            raise Absent(f"the input {wanted.path[0]} was not given and has no default")
        way: program_output.Way = wanted.path
        while way:
            if way[0] in program_output.READ and program_output.is_output(found):
                found, way = program_output.read(found, way, raw=wanted.raw, cut=cut)
            else:
                found, way = found[way[0]], way[1:]
        return found

    return _safely(look)


def with_item(look: Look, item: Any, *, cut: bool = False) -> Look:
    """Return a lookup that also finds this item."""
    own = looking({}, item, cut=cut)
    return lambda wanted: own(wanted) if wanted.root == ITEM else look(wanted)


def _safely(look: Callable[[Reference], Any]) -> Look:
    """Return a lookup that raises LookupError for every path that leads nowhere, for any cause."""

    def found(wanted: Reference) -> Any:
        try:
            return look(wanted)
        except Absent:
            raise
        except (LookupError, TypeError):
            raise LookupError(str(wanted)) from None

    return found


NOTHING_KNOWN = looking({})
"""The lookup for steps whose start does not depend on other steps."""


def filled_step(said: Mapping[str, Any], look: Look) -> dict[str, Any]:
    """Return the keys of a step with every reference replaced.

    In stdin, program output is inserted exactly as it was printed.
    """
    raw = expression.raw(look)
    return {key: expression.filled(value, raw if key == "stdin" else look) for key, value in said.items()}


def pause_us(round: int) -> int:
    """Return how long a failed workstream waits before its retry.

    >>> pause_us(1), pause_us(3), pause_us(99)
    (1000000, 4000000, 60000000)
    """
    return min(FIRST_PAUSE_US << min(round - 1, 20), LONGEST_PAUSE_US)

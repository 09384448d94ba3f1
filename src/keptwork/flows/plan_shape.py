"""Prepare a definition for the engine, with lookups of predecessors and successors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from keptwork.flows.definition import Flow, Step


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

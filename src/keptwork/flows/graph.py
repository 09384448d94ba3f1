"""Analyze dependencies between steps: order, cycles, and ready steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter

Dependencies = Mapping[str, Sequence[str]]
"""The predecessors of each step by its name, in the order of the file."""


def cycle(dependencies: Dependencies) -> list[str] | None:
    """Return the steps of a dependency cycle, with the first step repeated at the end, or None.

    >>> cycle({"a": ["c"], "b": ["a"], "c": ["b"]})
    ['a', 'c', 'b', 'a']
    """
    done: set[str] = set()
    for start in dependencies:
        path: dict[str, None] = {}  # ordered, with a fast membership test
        # Each entry is a step and how many of its dependencies were visited. Recursion would fail at a depth of 1,000.
        stack = [(start, 0)]
        while stack:
            name, place = stack.pop()
            if place == 0:
                if name in done:
                    continue
                if name in path:
                    names = list(path)
                    return [*names[names.index(name) :], name]
                path[name] = None
            after = dependencies.get(name, ())
            if place < len(after):
                stack += [(name, place + 1), (after[place], 0)]
            else:
                done.add(name)
                path.popitem()
    return None


def levels(dependencies: Dependencies) -> list[list[str]]:
    """Return the steps by level, in the order of the file. Steps of one level can run concurrently.

    >>> levels({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    [['a'], ['b', 'c'], ['d']]
    """
    depths: dict[str, int] = {}
    for name in TopologicalSorter(dependencies).static_order():  # raises ValueError for a cycle
        depths[name] = 1 + max((depths[one] for one in dependencies[name]), default=-1)
    found: list[list[str]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for name in dependencies:
        found[depths[name]].append(name)
    return found


class Before:
    """The predecessors of each step, direct and indirect.

    Each step has one bit for every other step, because separate searches would take a minute for a flow of thousands of
    steps.

    >>> earlier = Before({"a": [], "b": ["a"], "c": ["b"], "d": []})
    >>> [earlier.comes(name, "c") for name in "abcd"]
    [True, True, False, False]
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self._bits = {name: 1 << place for place, name in enumerate(dependencies)}
        self._before: dict[str, int] = {}
        for name in TopologicalSorter(dependencies).static_order():
            found = 0
            for one in dependencies.get(name, ()):
                found |= self._before[one] | self._bits.get(one, 0)
            self._before[name] = found

    def comes(self, earlier: str, later: str) -> bool:
        """Return whether a step is a direct or indirect predecessor of another."""
        return bool(self._before[later] & self._bits.get(earlier, 0))


def ready(dependencies: Dependencies, pending: Collection[str], satisfied: Collection[str]) -> list[str]:
    """Return the pending steps whose dependencies are all satisfied, in the order of the file.

    >>> ready({"a": [], "b": ["a"], "c": ["b"]}, {"b", "c"}, {"a"})
    ['b']
    """
    done = set(satisfied)
    return [name for name, after in dependencies.items() if name in pending and done.issuperset(after)]

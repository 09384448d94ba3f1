"""Which steps come before which: order, cycles, and what may run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter

Dependencies = Mapping[str, Sequence[str]]
"""By the name of each step, in the order of the file, the steps it comes after."""


def cycle(dependencies: Dependencies) -> list[str] | None:
    """Steps that wait for one another in a circle, the first one again at the end; none if there are none.

    >>> cycle({"a": ["c"], "b": ["a"], "c": ["b"]})
    ['a', 'c', 'b', 'a']
    """
    done: set[str] = set()
    for start in dependencies:
        path: dict[str, None] = {}  # in order, and quickly asked
        # Each entry is a step and how many of its dependencies were looked at: recursion would end at a thousand.
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
    """The steps side by side that could run at the same time, level after level, as they stand in the file.

    >>> levels({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    [['a'], ['b', 'c'], ['d']]
    """
    depths: dict[str, int] = {}
    for name in TopologicalSorter(dependencies).static_order():  # a cycle is its ValueError
        depths[name] = 1 + max((depths[one] for one in dependencies[name]), default=-1)
    found: list[list[str]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for name in dependencies:
        found[depths[name]].append(name)
    return found


class Before:
    """Which steps have ended well by the time another one runs. Each has a bit for every step: looked for one by one, a
    flow of thousands would take a minute.

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
        """Whether a step comes before another, however far."""
        return bool(self._before[later] & self._bits.get(earlier, 0))


def ready(dependencies: Dependencies, pending: Collection[str], satisfied: Collection[str]) -> list[str]:
    """The pending steps whose dependencies have all been satisfied, as they stand in the file.

    >>> ready({"a": [], "b": ["a"], "c": ["b"]}, {"b", "c"}, {"a"})
    ['b']
    """
    done = set(satisfied)
    return [name for name, after in dependencies.items() if name in pending and done.issuperset(after)]

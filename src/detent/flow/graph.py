"""Which steps come before which: order, cycles, and what may run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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
    left, found, done = dict(dependencies), [], set[str]()
    while left:
        level = [name for name, after in left.items() if done.issuperset(after)]
        if not level:
            raise ValueError("there is a cycle")
        found.append(level)
        done.update(level)
        for name in level:
            del left[name]
    return found


def before(dependencies: Dependencies, step: str) -> set[str]:
    """Every step that has ended well by the time this one runs."""
    found: set[str] = set()
    wanted = list(dependencies.get(step, ()))
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += dependencies.get(name, ())
    return found


def ready(dependencies: Dependencies, pending: Collection[str], satisfied: Collection[str]) -> list[str]:
    """The pending steps whose dependencies have all been satisfied, as they stand in the file.

    >>> ready({"a": [], "b": ["a"], "c": ["b"]}, {"b", "c"}, {"a"})
    ['b']
    """
    done = set(satisfied)
    return [name for name, after in dependencies.items() if name in pending and done.issuperset(after)]

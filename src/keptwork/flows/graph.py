"""Analyze dependencies between steps: order, cycles, and ready steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter

from keptwork.flows.definition import Flow, Step

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


# Draw a flow: level by level for a terminal, or as a Mermaid diagram.


_SHAPES = {"approval": ("{{", "}}"), "agent": ("([", "])"), "flow": ("[[", "]]"), "crew": ("[/", "/]")}
_LONGEST = 60


def about(step: Step) -> str:
    """Describe a step in a few words.

    >>> about(Step(id="lint", tool="ruff", args=["check", "src"]))
    'tool ruff check src'
    """
    match step.kind:
        case "tool":
            return _short("tool", step.tool, *step.args)
        case "command":
            return _short(*(step.command or ()))
        case "approval":
            by = step.approval.by if step.approval else None
            return f"approval by {by}" if by else "approval"
        case "crew":
            return _short("crew of", step.crew.workers if step.crew else 1, step.crew.task if step.crew else "")
    return _short(step.kind, getattr(step, step.kind))


def _short(*words: object) -> str:
    text = " ".join(" ".join(map(str, words)).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def lines(flow: Flow) -> list[str]:
    """Return the lines that show the steps level by level. Steps of one level can run concurrently."""
    steps, width = {step.id: step for step in flow.steps}, max(len(step.id) for step in flow.steps)
    found = []
    for number, level in enumerate(levels(flow.dependencies), 1):
        for place, name in enumerate(level):
            mark = f"{number:>3} " if place == 0 else "    "
            branch = "─" if len(level) == 1 else "┌" if place == 0 else "└" if place == len(level) - 1 else "├"
            found.append(f"{mark}{branch} {name:<{width}}  {about(steps[name])}{_remarks(flow, steps[name])}")
    return found


def _remarks(flow: Flow, step: Step) -> str:
    said = []
    if flow.kind == "workstream" and step.depends_on:
        said.append(f"after {', '.join(step.depends_on)}")
    if step.when:
        said.append(f"when {step.when}")
    if step.for_each:
        said.append(f"for each of {step.for_each.items if isinstance(step.for_each.items, str) else 'a list'}")
    if step.retries:
        said.append(f"{step.retries} {'retry' if step.retries == 1 else 'retries'}")
    return f"  ({'; '.join(said)})" if said else ""


def mermaid(flow: Flow) -> str:
    """Return a Mermaid diagram of the flow."""
    number = {step.id: f"s{place}" for place, step in enumerate(flow.steps)}
    out = ["flowchart TD"]
    for step in flow.steps:
        left, right = _SHAPES.get(step.kind, ("[", "]"))
        out.append(f'    {number[step.id]}{left}"{step.id}<br/>{_plain(about(step))}"{right}')
    for name, after in flow.dependencies.items():
        out += [f"    {number[one]} --> {number[name]}" for one in after]
    return "\n".join(out) + "\n"


def _plain(text: str) -> str:
    """Escape characters that would end a label or be markup in it."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")

"""Draw the graph of a flow as SVG: boxes from left to right, each linked to the row of its step.

The result depends only on the steps and their states. Colors are classes of the style sheet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from keptwork.flows import graph

MOST_STEPS = 300
MOST_LINES = 2_000
"""Maximum number of steps and of lines to draw. A larger drawing would be unreadable."""

MOST_BENDS = 2_000
"""Maximum number of levels at which lines go around boxes, in total. With more, lines are straight."""

WIDTH, HEIGHT = 190, 46
BETWEEN_LEVELS, BETWEEN_BOXES, LANE, MARGIN = 54, 14, 10, 6
LONGEST_NAME, LONGEST_LINE = 19, 27
SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Box:
    """A step: its name, its state as text and as a tone, what it does, and a `count` such as 2/3 of a list."""

    name: str
    tone: str
    state: str
    about: str
    count: str = ""


Place = tuple[str, ...]
"""A box by its name, or the point where a line passes a level between two boxes: (from, to, level)."""


@dataclass(frozen=True, slots=True)
class _Spot:
    """The upper left corner of a box, or the left end of a lane."""

    x: int
    y: float
    height: int

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def drawn(boxes: Sequence[Box], dependencies: graph.Dependencies) -> Markup | None:
    """Return the drawing, or None for a flow that is too large to draw.

    Redundant lines are omitted: if c depends on b, and b on a, there is no line from a to c.

    >>> made = drawn([Box("a", "good", "success", "true"), Box("b", "busy", "running", "false")], {"a": [], "b": ["a"]})
    >>> str(made).count("<rect"), str(made).count('class="edge"')
    (2, 1)
    """
    if not boxes or len(boxes) > MOST_STEPS or sum(map(len, dependencies.values())) > MOST_LINES:
        return None
    edges = needed(dependencies)
    levels, routes = _with_lanes(graph.levels(dependencies), edges)
    spots = _placed(_untangled(levels, routes))
    width = max(spot.x for spot in spots.values()) + WIDTH + MARGIN
    height = max(spot.y + spot.height for spot in spots.values()) + MARGIN
    lines = Markup("".join(_line([spots[place] for place in route]) for route in routes))  # noqa: S704 - only numbers
    shown = Markup("").join(_box(box, spots[(box.name,)]) for box in boxes)
    return Markup(
        '<svg class="graph" role="group" aria-label="The graph of its steps" width="{w}" height="{h}"'
        ' viewBox="0 0 {w} {h}"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>{lines}{boxes}</svg>'
    ).format(w=width, h=round(height), lines=lines, boxes=shown)


def needed(dependencies: graph.Dependencies) -> list[tuple[str, str]]:
    """Return the ends of the lines, without those that other lines imply.

    >>> needed({"a": [], "b": ["a"], "c": ["a", "b"]})
    [('a', 'b'), ('b', 'c')]
    """
    earlier = graph.Before(dependencies)
    return [
        (one, name)
        for name, after in dependencies.items()
        for one in dict.fromkeys(after)
        if not any(earlier.comes(one, other) for other in after if other != one)
    ]


# --- layout


def _with_lanes(
    levels: list[list[str]], edges: list[tuple[str, str]]
) -> tuple[list[list[Place]], list[tuple[Place, ...]]]:
    """Return the levels, with a lane in each level that a line crosses, and the routes of all lines."""
    depth = {name: number for number, names in enumerate(levels) for name in names}
    found: list[list[Place]] = [[(name,) for name in names] for names in levels]
    bends = sum(depth[end] - depth[start] - 1 for start, end in edges) <= MOST_BENDS
    routes = []
    for start, end in edges:
        passed = range(depth[start] + 1, depth[end]) if bends else range(0)
        lanes: list[Place] = [(start, end, str(number)) for number in passed]
        for number, lane in zip(passed, lanes, strict=True):
            found[number].append(lane)
        routes.append(((start,), *lanes, (end,)))
    return found, routes


def _untangled(levels: list[list[Place]], routes: list[tuple[Place, ...]]) -> list[list[Place]]:
    """Sort each level by the neighbors of its boxes, several times, so that few lines cross.

    The passes alternate between the neighbors in the previous level and in the next level.
    """
    before: dict[Place, list[Place]] = {}
    after: dict[Place, list[Place]] = {}
    for route in routes:
        for start, end in pairwise(route):
            before.setdefault(end, []).append(start)
            after.setdefault(start, []).append(end)
    for sweep in range(SWEEPS):
        ties, order = (before, levels) if sweep % 2 == 0 else (after, levels[::-1])
        ranks: dict[Place, float] = {}
        for level in order:
            own = {place: number / max(1, len(level) - 1) for number, place in enumerate(level)}
            level.sort(key=lambda place: _mean(ties.get(place, ()), ranks, own[place]))
            ranks |= {place: number / max(1, len(level) - 1) for number, place in enumerate(level)}
    return levels


def _mean(tied: Sequence[Place], ranks: Mapping[Place, float], otherwise: float) -> float:
    known = [ranks[place] for place in tied if place in ranks]
    return sum(known) / len(known) if known else otherwise


def _placed(levels: list[list[Place]]) -> dict[Place, _Spot]:
    """Return the position of every box and lane. Levels are centered vertically."""
    heights = [sum(_height(place) for place in level) + BETWEEN_BOXES * (len(level) - 1) for level in levels]
    tallest, found = max(heights), {}
    for number, (level, height) in enumerate(zip(levels, heights, strict=True)):
        x, y = MARGIN + number * (WIDTH + BETWEEN_LEVELS), MARGIN + (tallest - height) / 2
        for place in level:
            found[place] = _Spot(x, y, _height(place))
            y += _height(place) + BETWEEN_BOXES
    return found


def _height(place: Place) -> int:
    return HEIGHT if len(place) == 1 else LANE


# --- drawing


def _line(spots: Sequence[_Spot]) -> str:
    path = [f"M{spots[0].x + WIDTH} {spots[0].middle:g}"]
    for place, (start, end) in enumerate(pairwise(spots)):
        last = place == len(spots) - 2
        bend = (end.x - start.x - WIDTH) / 2
        path.append(
            f"C{start.x + WIDTH + bend:g} {start.middle:g} {end.x - bend:g} {end.middle:g} {end.x} {end.middle:g}"
        )
        path += [] if last else [f"H{end.x + WIDTH}"]
    way = "".join(path)
    return f'<path class="edge" d="{way}" marker-end="url(#tip)"/>'


def _box(box: Box, spot: _Spot) -> Markup:
    count = f" {box.count}" if box.count else ""
    return Markup(
        '<a href="#step-{name}" class="{tone}" aria-label="{name}: {state}{count}">'
        "<title>{name}: {state}{count}\n{about}</title>"
        '<rect x="{x}" y="{y:g}" width="{w}" height="{h}" rx="7"/><circle cx="{dot}" cy="{upper:g}" r="4"/>'
        '<text x="{left}" y="{first:g}">{short}</text><text class="about" x="{mark}" y="{second:g}">{line}</text></a>'
    ).format(
        name=box.name,
        tone=box.tone,
        state=box.state,
        count=count,
        about=box.about,
        x=spot.x,
        y=spot.y,
        w=WIDTH,
        h=HEIGHT,
        dot=spot.x + 15,
        upper=spot.y + 16,
        left=spot.x + 25,
        mark=spot.x + 11,
        first=spot.y + 20,
        second=spot.y + 36,
        short=_cut(box.name, LONGEST_NAME),
        line=_cut(f"{box.count} · {box.about}" if box.count else box.about, LONGEST_LINE),
    )


def _cut(text: str, longest: int) -> str:
    """
    >>> _cut("release-notes", 9)
    'release-…'
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

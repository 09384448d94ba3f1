"""The drawing of a flow: boxes, lines, and what is left out of it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as Xml

from keptwork.dashboard.flow_graph import MOST_STEPS, Box, drawn, needed

SVG = "{http://www.w3.org/2000/svg}"


def boxes(*names: str) -> list[Box]:
    return [Box(name, "busy", "running", "true") for name in names]


def places(drawing: str) -> dict[str, tuple[float, float]]:
    """Where the box of each step stands."""
    found = re.findall(r'href="#step-([^"]+)".*?<rect x="([^"]+)" y="([^"]+)"', drawing, re.DOTALL)
    return {name: (float(x), float(y)) for name, x, y in found}


def read(drawing: str) -> Xml.Element:
    return Xml.fromstring(str(drawing).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))  # noqa: S314 - ours


def test_steps_stand_from_left_to_right_as_they_come_after_one_another() -> None:
    made = drawn(boxes("a", "b", "c", "d"), {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    assert made is not None
    at = places(made)
    assert at["a"][0] < at["b"][0] == at["c"][0] < at["d"][0]
    assert at["b"][1] != at["c"][1]
    assert made.count('class="edge"') == 4


def test_no_line_crosses_a_box() -> None:
    """One that goes past a level has a lane of its own there."""
    made = drawn(boxes("a", "b", "c", "side"), {"a": [], "side": [], "b": ["a"], "c": ["b", "side"]})
    assert made is not None
    passing = max(re.findall(r'd="([^"]+)"', made), key=len)
    height = float(re.findall(r"H\d+", passing)[0][1:])
    assert height > places(made)["b"][0]
    lane = float(re.findall(r" ([\d.]+)H", passing)[0])
    top = places(made)["b"][1]
    assert not top <= lane <= top + 46


def test_lines_that_others_imply_are_left_out() -> None:
    after = {f"s{number}": [f"s{earlier}" for earlier in range(number)] for number in range(10)}
    assert needed(after) == [(f"s{number}", f"s{number + 1}") for number in range(9)]


def test_what_a_step_says_is_text_and_never_markup() -> None:
    made = drawn([Box("a", "busy", "running", '"><img src=x onerror=alert(1)><script>')], {"a": []})
    assert made is not None
    assert "<img" not in made
    assert "<script" not in made
    read(made)


def test_long_names_are_cut_in_their_box_and_whole_when_pointed_at() -> None:
    name = "a" * 100
    made = drawn([Box(name, "good", "success", "b" * 60, "2/3")], {name: []})
    assert made is not None
    whole = read(made)
    first, second = (one.text or "" for one in whole.iter(f"{SVG}text"))
    assert (len(first), first[-1]) == (19, "…")
    assert second.startswith("2/3 · bbb")
    (title,) = whole.iter(f"{SVG}title")
    assert title.text == f"{name}: success 2/3\n{'b' * 60}"


def test_a_flow_of_too_many_steps_or_lines_is_not_drawn() -> None:
    many = [f"s{number}" for number in range(MOST_STEPS + 1)]
    assert drawn(boxes(*many), {name: [] for name in many}) is None
    assert drawn(boxes(*many[:-1]), {name: [] for name in many[:-1]}) is not None
    layers = {name: many[:50] if place >= 50 else [] for place, name in enumerate(many[:100])}
    assert drawn(boxes(*layers), layers) is None
    assert drawn([], {}) is None

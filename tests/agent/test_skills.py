"""Skills: the built-in ones, the user's own, and which of them a task goes to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.agents.skills import BUILT_IN, DEFAULT, FILE, Tier, grade, route, skills
from keptwork.errors import BadInput


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / FILE).write_text(text)
    return folder


RELEASES = """---
name: releases
description: Write notes for a release
keywords: [release notes, Changelog]
allowed-tools: [git-log]
output-schema: {type: object}
---
Say what changed for users.
"""


def test_the_words_of_a_skill_are_what_is_written(tmp_path: Path) -> None:
    """As in flow files; of these YAML 1.1 made booleans, and the skill was refused."""
    text = RELEASES.replace("[release notes, Changelog]", "[on, off, yes, 1_000]")
    assert skills(written(tmp_path, "releases", text))[0].keywords == ("on", "off", "yes", "1_000")


@pytest.mark.parametrize(
    ("text", "skill"),
    [
        ("Write unit tests for the parser", "testing"),
        ("Refactor the scheduler and rename its parts", "refactoring"),
        ("Explain the README to a newcomer", "documentation"),
        ("It crashes with a traceback, fix it", "bug_fix"),
        ("Implement an endpoint", DEFAULT),
        ("Hm", DEFAULT),
    ],
)
def test_a_task_goes_to_the_skill_its_words_point_to(text: str, skill: str) -> None:
    assert route(text, BUILT_IN).skill.name == skill


def test_a_tie_goes_to_the_skill_that_stands_first() -> None:
    routed = route("test the fix", BUILT_IN)
    assert [score.points for score in routed.scores] == [1, 0, 0, 1, 0], routed
    assert routed.skill.name == "testing"
    assert "bug_fix" in routed.why


def test_a_word_inside_another_does_not_count() -> None:
    assert route("latest prefixes", BUILT_IN).why == "no keyword of any skill stands in the text"


def test_a_skill_of_the_user_comes_before_the_built_in_ones(tmp_path: Path) -> None:
    found = skills(written(tmp_path, "releases", RELEASES))
    assert [skill.name for skill in found] == ["releases", *(skill.name for skill in BUILT_IN)]
    assert found[0].keywords == ("release notes", "changelog")
    assert found[0].tools == ("git-log",)
    assert found[0].instructions == "Say what changed for users."
    assert route("docs: the release notes", found).skill.name == "releases"


def test_a_skill_of_the_user_may_replace_a_built_in_one(tmp_path: Path) -> None:
    found = skills(written(tmp_path, "t", RELEASES.replace("name: releases", "name: testing")))
    assert [skill.name for skill in found].count("testing") == 1
    assert found[0].source is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no front matter", "front matter"),
        ("---\nname: x\n", "front matter"),
        ("---\nname: [\n---\n", "no YAML"),
        ("---\nname: x\n---\n", "description"),
        ("---\nname: UPPER\ndescription: d\n---\n", "name"),
        ("---\nname: x\ndescription: d\nkeyword: [a]\n---\n", "keyword"),
        ("---\n- a\n---\n", "dictionary"),
    ],
)
def test_a_skill_that_cannot_be_read_is_refused_with_its_file_and_what_is_wrong(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(BadInput, match=said) as refusal:
        skills(written(tmp_path, "x", text))
    assert FILE in str(refusal.value)


def test_two_skills_of_one_name_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "a", RELEASES)
    written(tmp_path, "b", RELEASES)
    with pytest.raises(BadInput, match="two skills called releases"):
        skills(tmp_path)


@given(st.text(max_size=3_000))
def test_any_text_has_a_skill_and_a_tier_and_always_the_same_ones(text: str) -> None:
    assert route(text, BUILT_IN) == route(text, BUILT_IN)
    assert grade(text) == grade(text)


@given(st.text(max_size=500), st.text(max_size=3_000))
def test_a_longer_task_is_never_graded_lower(text: str, more: str) -> None:
    order = list(Tier)
    assert order.index(grade(f"{text} {more}").tier) >= order.index(grade(text).tier)


def test_above_the_most_capable_tier_there_is_none() -> None:
    assert Tier.HAIKU.above is Tier.SONNET
    assert Tier.OPUS.above is None

"""`keptwork dead-letters` as its users run it: one story over one database."""

from __future__ import annotations

import pytest

from tests.cli.queue_scene import answer, fill, said
from tests.cli.refusals import refused
from tests.support.command import run


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('dead')}/keptwork.db"


@pytest.fixture(scope="module")
def ids(url: str) -> dict[str, str]:
    return fill(url)


def test_dead_letters_are_listed_explained_and_run_again_once(url, ids):
    letters = {letter["id"]: letter for letter in answer(url, "dead-letters", "list")["dead_letters"]}
    assert letters.keys() == {ids["dead"], ids["dead too"]}
    for columns in (80, 200):
        told = said(url, "dead-letters", "list", "--reason", "validation_failed", columns=columns)
        assert all(words in told for words in (ids["dead"], "validation_failed", "ValueError: broken"))
    told = said(url, "dead-letters", "show", ids["dead"], columns=80)
    assert all(words in told for words in ("validation_failed in stage input", "1 of 4", "last worker"))
    assert answer(url, "dead-letters", "redrive", "--queue", "work", "--dry-run") == {"would_redrive": 2}

    one = answer(url, "dead-letters", "redrive", ids["dead"], "--payload", '{"fixed": 1}')
    assert one["count"] == 1
    new = one["redriven"][0]["new"]
    assert answer(url, "jobs", "show", new)["payload"] == {"fixed": 1}
    assert answer(url, "dead-letters", "show", ids["dead"])["redriven_as"] == [new]
    refused(run("dead-letters", "redrive", ids["dead"], "--db", url), 1, f"run again before, as {new}", "--again")

    told = said(url, "dead-letters", "redrive", "--all", "--rate", "50")
    assert told.startswith(f"{ids['dead too']} → job_")
    assert told.endswith("\nRan 1 dead letter again.\n")
    assert said(url, "dead-letters", "redrive", "--all") == "Ran 0 dead letters again.\n"


def test_what_cannot_be_is_one_clear_line(url, ids):
    refused(run("dead-letters", "redrive", "--db", url), 2, "say which: an ID, or --queue")
    refused(run("dead-letters", "redrive", ids["dead"], "--all", "--db", url), 2, "not both")
    refused(run("dead-letters", "redrive", "--all", "--payload", "{}", "--db", url), 2, "--payload goes with the ID")
    refused(run("dead-letters", "show", ids["failed"], "--db", url), 1, "No dead letter", "keptwork dead-letters list")
    assert said(url, "dead-letters", "list", "--kind", "nothing") == "No dead letters.\n"

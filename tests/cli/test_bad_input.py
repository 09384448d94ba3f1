"""A question that cannot be answered: one line that says what and what to do, and an exit code."""

from __future__ import annotations

import json

import pytest

from tests.cli.refusals import ALL, contents, refused, refused_in_usage
from tests.support.command import run


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_an_unknown_scheme(command, tmp_path):
    done = run(*command, "--db", "mysql://ann:secret@host/work", cwd=tmp_path)
    line = refused(done, 2, "'mysql'", "sqlite:///path/to/file.db", "postgresql://user@host/database")
    assert "secret" not in line
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_url_without_a_scheme(command, tmp_path):
    refused(run(*command, "--db", "work.db", cwd=tmp_path), 2, "work.db", "no scheme", "sqlite:///path/to/file.db")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://ann:secret@host:port/work", "the port is not a number"),
        ("postgresql://ann:secret@host:99999/work", "the port is not a number"),
        ("sqlite://work.db", "three slashes"),
        ("sqlite:///a%00b", "NUL"),
    ],
)
def test_a_url_that_cannot_be(url, words, tmp_path):
    line = refused(run("events", "list", "--db", url, cwd=tmp_path), 2, words)
    assert "secret" not in line
    assert contents(tmp_path) == {}


def test_the_variable_is_refused_like_the_option(tmp_path):
    refused(run("events", "list", cwd=tmp_path, KEPTWORK_DB="mysql://host/work"), 2, "'mysql'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["events", "list", "--after", "yesterday"], ["'yesterday' is no event cursor", "from an earlier answer"]),
        (["events", "follow", "--after", "1-2-3"], ["'1-2-3' is no event cursor"]),
        (["audit", "export", "--after", "x"], ["'x' is no event cursor"]),
        (["events", "list", "--since", "lunchtime"], ["'lunchtime' is neither a time nor a duration", "10m"]),
        (["events", "list", "--until", "10 m"], ["'10 m' is neither a time nor a duration"]),
        (["events", "list", "--since", "99999999999d"], ["longer than a hundred years"]),
        (["events", "list", "--entity", "unicorn"], ["no lifecycle 'unicorn'", "there are: job, worker"]),
        (["events", "list", "--limit", "0"], ["1 to 10000 events, not 0"]),
        (["events", "list", "--limit", "-5"], ["1 to 10000 events, not -5"]),
        (["events", "follow", "--from-start", "--after", "1"], ["--after and --from-start exclude each other"]),
        (["demo", "--db", "sqlite://:memory:"], ["in memory", "give a file"]),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, list) and value[0] in ("events", "audit") else None,
)
def test_a_question_that_cannot_be_answered(arguments, words, original):
    given = arguments if "--db" in arguments else [*arguments, "--db", f"sqlite:///{original}"]
    refused(run(*given), 2, *words)


IDS = ["job_1", "17", "", "job_0199c82c-c000-7000-807a-a2a0b8276ff9", "cat_0199c82c-c000-7000-807a-a2a0b8276ff8", "é"]


@pytest.mark.parametrize("id", IDS)
def test_an_id_that_is_none(id, original):
    refused(
        run("events", "list", "--id", id, "--db", f"sqlite:///{original}"),
        1,
        f"No entity {id!r}",
        "keptwork events list",
    )


def test_an_id_that_nothing_has(original):
    unused = "job_0199c82c-c000-7000-807a-a2a0b8276ff8"
    refused(run("events", "list", "--id", unused, "--db", f"sqlite:///{original}"), 1, unused, "keptwork events list")


def test_an_id_of_another_lifecycle(original):
    job = "job_0199c82c-c000-7000-807a-a2a0b8276ff8"
    refused(run("events", "list", "--id", job, "--entity", "run", "--db", f"sqlite:///{original}"), 2, "is no run")


def test_mistyped_commands_and_options(original):
    db = ("--db", f"sqlite:///{original}")
    refused_in_usage(run("events", "list", "--limt", "5", *db), "No such option: --limt")
    refused_in_usage(run("events", "list", "--limit", "many", *db), "'--limit'")
    refused_in_usage(run("audit", "verfy", *db), "No such command 'verfy'")
    refused_in_usage(run("migrate", "now", *db), "unexpected extra argument")
    refused(run("events", "list", "--db"), 2, "'--db' requires an argument")


@pytest.mark.parametrize("place", ["", "/not/there/log.jsonl"])
def test_an_export_to_where_nothing_can_be_written(place, tmp_path, original):
    done = run("audit", "export", f"{tmp_path}{place}", "--db", f"sqlite:///{original}")
    refused(done, 1, f"Cannot write {tmp_path}{place}", "Choose another place")
    assert contents(tmp_path) == {}


def test_an_error_is_json_when_json_was_asked_for(tmp_path):
    done = run("events", "list", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr)["error"]["type"] == "NoDatabase"

"""`keptwork jobs` as its users run it. The tests share a database, and each has its own jobs in it."""

from __future__ import annotations

import json

import pytest

from tests.cli.queue_scene import answer, fill, said
from tests.cli.refusals import refused
from tests.support.command import run


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('jobs')}/keptwork.db"


@pytest.fixture(scope="module")
def ids(url: str) -> dict[str, str]:
    return fill(url)


def test_a_job_is_enqueued_once_under_its_key_and_shown(url, ids):
    order = ("jobs", "enqueue", "mail", '{"to": "bob"}', "--queue", "mails", "--key", "order-1", "--run-in", "5m")
    first = answer(url, *order)
    assert (first["created"], first["job"]["state"], first["job"]["payload"]) == (True, "queued", {"to": "bob"})
    assert first["job"]["actor"].startswith("cli")
    id = first["job"]["id"]
    assert f"{id} was made under this key" in said(url, *order)
    shown = answer(url, "jobs", "show", id)
    assert [event["trigger"] for event in shown["events"]] == ["enqueue"]
    told = said(url, "jobs", "show", id, columns=80)
    for words in (id, "queued, due in 5 min", "mails, priority 0", '{"to": "bob"}', "job_enqueued"):
        assert words in told


def test_a_payload_may_come_from_stdin(url, ids):
    done = run("jobs", "enqueue", "mail", "-", "--json", "--db", url, stdin='{"to": "eve"}')
    assert json.loads(done.stdout)["job"]["payload"] == {"to": "eve"}


def test_a_list_narrows_and_reads_well_at_any_width(url, ids):
    found = answer(url, "jobs", "list", "--state", "dead-lettered", "--state", "running")["jobs"]
    assert {job["id"] for job in found} == {ids["dead"], ids["dead too"], ids["running"]}
    (only,) = answer(url, "jobs", "list", "--correlation", "c-1")["jobs"]
    assert only["id"] == ids["waiting"]
    for columns in (80, 200):
        told = said(url, "jobs", "list", "--queue", "work", columns=columns)
        assert all(ids[name] in told for name in ("running", "failed", "dead"))
        assert "dead-lettered" in told
    assert "waiting" in said(url, "jobs", "list", "--kind", "waiting")
    assert said(url, "jobs", "list", "--kind", "nothing") == "No jobs.\n"


def test_a_list_goes_on_where_it_ended(url, ids):
    first = run("jobs", "list", "--queue", "work", "--limit", "3", "--db", url)
    cursor = first.stderr.removeprefix("There are more; go on with: --after ").strip()
    rest = answer(url, "jobs", "list", "--queue", "work", "--after", cursor)
    assert [job["id"] for job in rest["jobs"]] == [ids["running"]]


def test_a_job_is_stopped_softly_then_hard_and_runs_again(url, ids):
    id = ids["running"]
    assert answer(url, "jobs", "cancel", id)["outcome"] == "asked_to_stop"
    assert "asked to stop" in said(url, "jobs", "list", "--state", "running")
    late = run("jobs", "wait", id, "--timeout", "50ms", "--db", url)
    refused(late, 124, f"{id} is still running after 50ms")
    assert said(url, "jobs", "cancel", id, "--hard", "--reason", "no more") == f"{id} is cancelled.\n"
    ended = run("jobs", "wait", id, "--db", url)
    assert (ended.returncode, "was cancelled" in ended.stdout, "no more" in ended.stdout) == (1, True, True)
    refused(run("jobs", "cancel", id, "--db", url), 1, f"{id} is cancelled: cannot cancel")
    new = answer(url, "jobs", "retry", id)["new"]
    refused(run("jobs", "retry", id, "--db", url), 1, f"was run again before, as {new}", "--again")
    assert answer(url, "jobs", "retry", id, "--again", "--payload", '{"a": 1}')["new"] != new


def test_what_cannot_be_is_one_clear_line(url, ids):
    refused(run("jobs", "show", "job_123", "--db", url), 1, "No job 'job_123'; list them with: keptwork jobs list")
    refused(run("jobs", "enqueue", "x", "[1]", "--db", url), 2, "must be a JSON object")
    refused(run("jobs", "list", "--state", "lost", "--db", url), 2, "a job is never 'lost'")
    refused(run("jobs", "list", "--tenant", "nobody", "--db", url), 1, "No tenant nobody")

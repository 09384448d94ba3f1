"""`keptwork queues` as its users run it: one story over one database."""

from __future__ import annotations

from tests.cli.queue_scene import answer, fill, said
from tests.support.command import run


def test_queues_are_listed_paused_and_resumed(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert said(sqlite_url, "queues", "list") == "No queues: nothing was ever enqueued.\n"
    fill(sqlite_url)
    default, work = answer(sqlite_url, "queues", "list")["queues"]
    assert (default["name"], default["jobs"]["queued"], default["paused_at"]) == ("default", 1, None)
    assert (work["name"], work["jobs"]["dead_lettered"], work["oldest_due_at"]) == ("work", 2, None)

    assert said(sqlite_url, "queues", "pause", "default") == "default is paused.\n"
    assert said(sqlite_url, "queues", "pause", "default") == "default was paused already.\n"
    assert said(sqlite_url, "queues", "pause", "defualt") == "defualt is paused. It has no jobs.\n"
    for columns in (80, 200):
        told = said(sqlite_url, "queues", "list", columns=columns)
        assert all(words in told for words in ("dead-lettered", "waiting", "paused"))
    answered = answer(sqlite_url, "queues", "resume", "default")
    assert answered == {"name": "default", "paused": False, "was_paused": True}
    assert said(sqlite_url, "queues", "resume", "default") == "default was not paused.\n"
    assert answer(sqlite_url, "queues", "list")["queues"][0]["paused_at"] is None


def test_a_queue_is_limited_and_the_limit_is_listed_and_taken_away(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert said(sqlite_url, "limits", "list") == "No limits: none was declared.\n"
    assert answer(sqlite_url, "queues", "limit", "emails", "--most", "10", "--rate", "100/min")["most"] == 10
    (limit,) = answer(sqlite_url, "limits", "list")["limits"]
    assert (limit["key"], limit["most"], limit["rate"], limit["window_us"]) == ("queue:emails", 10, 100, 60_000_000)
    assert "100 in" in said(sqlite_url, "limits", "list")
    assert run("queues", "limit", "emails", "--db", sqlite_url).returncode == 2
    assert run("queues", "limit", "emails", "--rate", "often", "--db", sqlite_url).returncode == 2
    assert said(sqlite_url, "queues", "limit", "emails", "--none") == "emails has no limit.\n"
    assert answer(sqlite_url, "limits", "list") == {"limits": []}

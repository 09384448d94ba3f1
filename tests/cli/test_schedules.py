"""`keptwork schedules` as its users run it: one story over one database."""

from __future__ import annotations

from tests.cli.queue_scene import answer, said
from tests.support.command import run

WEEKLY = ("--kind", "report", "--cron", "0 9 * * mon", "--tz", "Europe/Berlin", "--payload", '{"to":"ann"}')


def test_schedules_are_added_listed_shown_paused_resumed_run_and_deleted(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    made = answer(sqlite_url, "schedules", "add", "weekly", *WEEKLY, "--catch-up", "all")
    assert (made["cron"], made["tz"], made["payload"], made["catch_up"]) == (
        "0 9 * * mon",
        "Europe/Berlin",
        {"to": "ann"},
        "all",
    )
    assert said(sqlite_url, "schedules", "add", "often", "--kind", "ping", "--every", "15m").startswith("often is due")

    shown = answer(sqlite_url, "schedules", "show", "weekly")
    assert len(shown["upcoming"]) == 5
    assert all(" 09:00:00+0" in tick for tick in shown["upcoming"])
    assert said(sqlite_url, "schedules", "show", "weekly").count(" 09:00:00+0") == 5
    for columns in (80, 200):
        listed = said(sqlite_url, "schedules", "list", columns=columns)
        assert "every 15m" in listed
        assert "0 9 * * mon (Europe/Berlin)" in listed

    assert said(sqlite_url, "schedules", "pause", "weekly") == "weekly is paused.\n"
    assert "paused" in said(sqlite_url, "schedules", "list")
    assert answer(sqlite_url, "schedules", "resume", "weekly")["was_paused"]
    assert said(sqlite_url, "schedules", "resume", "weekly") == "weekly was not paused.\n"

    job = answer(sqlite_url, "schedules", "run-now", "weekly")["job"]
    assert answer(sqlite_url, "jobs", "show", job)["payload"] == {"to": "ann"}
    assert said(sqlite_url, "schedules", "delete", "weekly") == "weekly is deleted.\n"
    assert [one["name"] for one in answer(sqlite_url, "schedules", "list")["schedules"]] == ["often"]


def test_what_is_wrong_is_said_in_one_line(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    for arguments, code, says in (
        (("add", "x", "--kind", "k", "--cron", "0 25 * * *"), 2, "cron '0 25 * * *': bad hour '25'"),
        (("add", "x", "--kind", "k"), 2, "give one of cron and every"),
        (("add", "x", "--kind", "k", "--every", "1m", "--payload", "[]"), 2, "must be a JSON object"),
        (("add", "x", "--kind", "k", "--every", "1m", "--catch-up", "some"), 2, "say 'latest', 'all' or 'none'"),
        (("add", "x", "--kind", "k", "--cron", "* * * * *", "--tz", "Mars"), 2, "'Mars' is no time zone"),
        (("pause", "nothing"), 1, "No schedule nothing; list them with: keptwork schedules list"),
        (("show", "nothing"), 1, "No schedule nothing"),
    ):
        done = run("schedules", *arguments, "--db", sqlite_url)
        assert done.returncode == code, done.stderr
        assert says in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_schedule_of_a_flow_is_called_by_what_it_starts(sqlite_url, tmp_path):
    """It said keptwork.start, and the id of a template."""
    assert run("migrate", "--db", sqlite_url).returncode == 0
    (tmp_path / "night.yaml").write_text("name: clean-up\nsteps:\n  - {id: a, command: [x]}\n")
    flow = ("--flow", f"{tmp_path}/night.yaml", "--every", "2s")
    assert said(sqlite_url, "schedules", "add", "nightly", *flow).startswith("nightly is due")
    for columns in (80, 200):
        listed = said(sqlite_url, "schedules", "list", columns=columns)
        assert "flow clean-up" in listed
        assert "every 2 s" in listed
        assert "keptwork.start" not in listed
    shown = [line.split(maxsplit=1) for line in said(sqlite_url, "schedules", "show", "nightly").splitlines()]
    assert ["flow", "clean-up in default"] in shown
    assert answer(sqlite_url, "schedules", "show", "nightly")["kind"] == "keptwork.start"

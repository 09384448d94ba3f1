"""`keptwork demo`: what `make run` shows."""

from __future__ import annotations

import json
import time

from tests.lifecycle.expected import EXPECTED
from tests.support.command import run


def test_it_takes_real_jobs_through_every_kind_of_life():
    began = time.monotonic()
    done = run("demo", "--json")
    took = time.monotonic() - began
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    types = [event["type"] for event in shown["events"]]
    assert types.count("job_enqueued") == 5
    assert {"job_succeeded", "job_retry_scheduled", "job_lease_expired", "job_cancelled", "job_dead_lettered"} <= {
        *types
    }
    assert types.count("job_succeeded") == 3
    ends = {event["entity_id"]: event["to_state"] for event in shown["events"] if event["entity"] == "job"}
    assert set(ends.values()) <= EXPECTED["job"].final
    assert shown["audit"]["clean"]
    assert shown["audit"]["events"] == len(shown["events"])
    assert 1.2 < took < 30  # a real lease ran out


def test_what_is_refused_is_refused_by_the_program_and_by_the_database():
    refused = json.loads(run("demo", "--json").stdout)["refused"]
    assert refused["by_decide"].startswith("job import-orders is cancelled: cannot succeed")
    assert "no declared move of a job" in refused["by_database"]


def test_it_reads_well_on_a_narrow_terminal():
    done = run("demo", COLUMNS="80")
    assert done.returncode == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "…" not in done.stdout
    assert done.stdout.rstrip().endswith("the state of every row matches its events.")


def test_on_a_database_of_ones_own_it_touches_nothing_else(database_url):
    for _ in range(2):
        assert run("demo", "--db", database_url).returncode == 0
    found = json.loads(run("audit", "verify", "--json", "--db", database_url).stdout)
    assert (found["clean"], found["rows"]["job"], found["rows"]["worker"]) == (True, 10, 4)

"""What the fuzzer knows of a server, and what it gives to requests."""

from __future__ import annotations

import random

import pytest

from keptwork.core import ids
from tests.http.fuzz.choices import Choices
from tests.http.fuzz.things import Claim, Things

QUEUED, RUNNING, FAILED = (ids.public("job", number) for number in (1, 2, 3))
WORKER, OWN_KEY, OTHER_KEY = ids.public("w", 4), ids.public("key", 5), ids.public("key", 6)


@pytest.fixture
def things() -> Things:
    known = Things(random.Random(1), OWN_KEY)
    jobs = {QUEUED: "queued", RUNNING: "running", FAILED: "failed"}
    known.told("/api/jobs", {}, {"jobs": [{"id": id, "state": state} for id, state in jobs.items()], "next": "n1"})
    return known


def test_whoever_asks_again_is_given_something_in_another_state(things: Things) -> None:
    assert {things.one("job", "GET /api/jobs/{id}") for _ in range(3)} == {QUEUED, RUNNING, FAILED}


def test_a_state_that_was_good_for_an_asker_is_given_every_other_time(things: Things) -> None:
    asker = "POST /api/jobs/{id}/retry"
    while things.one("job", asker) != FAILED:
        pass
    things.did(asker)
    assert [things.one("job", asker) for _ in range(8)].count(FAILED) >= 4


def test_a_name_of_what_a_job_keeps_is_given_with_the_job(things: Things) -> None:
    things.told("/api/jobs/{id}", {}, {"id": QUEUED, "state": "queued", "artifacts": [{"name": "report"}]})
    assert things.part("artifacts") == (QUEUED, "report")


def test_what_has_moved_is_found_in_its_new_state_alone(things: Things) -> None:
    things.told(
        "/api/jobs/{id}/cancel", {"id": QUEUED}, {"outcome": "ended", "job": {"id": QUEUED, "state": "cancelled"}}
    )
    assert things.one("job", "", "queued") is None
    assert things.one("job", "", "cancelled") == QUEUED


def test_what_is_told_without_its_state_stays_in_the_one_it_was_in(things: Things) -> None:
    things.told("/api/workers/{id}", {}, {"jobs": [{"id": QUEUED, "kind": "fetch"}]})
    assert things.one("job", "", "queued") == QUEUED


def test_the_key_that_the_fuzzer_asks_with_is_given_to_no_request(things: Things) -> None:
    things.told("/api/keys", {}, {"keys": [{"id": one, "state": "live"} for one in (OWN_KEY, OTHER_KEY)]})
    assert {things.one("key", "") for _ in range(20)} == {OTHER_KEY}


def test_a_claim_says_who_has_which_job(things: Things) -> None:
    given = {"id": RUNNING, "epoch": 2, "state": "running"}
    things.told("/api/workers/{id}/claim", {"id": WORKER}, {"jobs": [given], "state": "RUNNING"})
    assert things.claim() == Claim(RUNNING, 2, WORKER)


def test_lists_tell_names_by_their_noun_and_where_they_go_on(things: Things) -> None:
    things.told("/api/dead-letters", {}, {"dead_letters": [{"name": "one"}], "next": None})
    assert (things.name("dead-letters"), things.name("schedules")) == ("one", None)
    assert things.pages == {"/api/jobs": "n1"}


def test_a_parameter_is_mostly_of_its_own_noun_and_on_a_whim_of_another(things: Things) -> None:
    things.told("/api/keys", {}, {"keys": [{"id": OTHER_KEY, "state": "live"}]})
    mostly, never = (Choices(things, random.Random(1), whim) for whim in (0.2, 1))
    given = [mostly.in_address("jobs", "", "made-up") for _ in range(300)]
    own = [one for one in given if one.startswith("job_")]
    assert 200 < len(own) < 300
    assert {"made-up", OTHER_KEY} <= set(given)
    assert "made-up" in {never.in_address("jobs", "", "made-up") for _ in range(30)}

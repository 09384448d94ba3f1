"""PostgreSQL: a session that writes its events itself makes more than one move at a time, and nothing undeclared."""

from __future__ import annotations

from itertools import product

import pytest

from tests.lifecycle.expected import EXPECTED
from tests.store.entities import insert, new_id, put
from tests.store.entities import move as moved
from tests.store.hands import Hand

pytestmark = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)

JOB = EXPECTED["job"]
MOVES = (JOB.create, *sorted({trigger for trigger, *_ in JOB.moves}), "fly")
USUAL_BIRTH = ("enqueue", "queued", 1, 0)
STARTED_AT_ONCE = ("start", "running", 3, 0)
CLAIMED_AND_STARTED = ("queued", "start", "running", 2, 0)
# As the server keeps a condition; it is read for every statement. That of the moves of jobs had 32,000 once.
LONGEST_CONDITION = 12_000


TRIED = """CREATE OR REPLACE FUNCTION pg_temp.comes_through(statement text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RAISE SQLSTATE 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN RETURN true; WHEN SQLSTATE 'DT001' THEN RETURN false;
END $$"""


def let_through(hand: Hand, attempts: dict[tuple[object, ...], str]) -> list[tuple[object, ...]]:
    """Which of these statements are not refused. All are undone, on the server: they are thousands."""
    hand.run(TRIED)
    told = ", ".join(f"({number}, $${sql}$$)" for number, sql in enumerate(attempts.values()))
    found = hand.rows(f"SELECT n FROM (VALUES {told}) AS a(n, sql) WHERE pg_temp.comes_through(sql) ORDER BY n")
    return [list(attempts)[row["n"]] for row in found]


def births_let_through(hand: Hand) -> list[tuple[object, ...]]:
    attempts: dict[tuple[object, ...], str] = {}
    for move, state, seq, epoch in product(MOVES, (*JOB.states, "NOWHERE"), (0, 1, 2, 3, 4), (0, 1)):
        changed = {"move": f"'{move}'", "state": f"'{state}'", "seq": str(seq), "epoch": str(epoch)}
        attempts[move, state, seq, epoch] = insert("job", new_id(), **changed)
    return let_through(hand, attempts)


def leaps_let_through(hand: Hand) -> list[tuple[object, ...]]:
    """Updates that raise seq by anything but one."""
    attempts: dict[tuple[object, ...], str] = {}
    for source in JOB.states:
        job = put(hand, "job", source)
        for move, state, seqs, epochs in product(MOVES, (*JOB.states, "NOWHERE"), (-1, 2, 3), (0, 1)):
            leap = f"seq = seq + {seqs}, move = '{move}', state = '{state}', epoch = epoch + {epochs}"
            attempts[source, move, state, seqs, epochs] = f"UPDATE jobs SET {leap} WHERE id = {job.id}"
    return let_through(hand, attempts)


@pytest.fixture
def own(trying: Hand) -> Hand:
    trying.run("SET LOCAL keptwork.logs = 'self'")
    return trying


def test_a_job_is_born_queued_or_as_if_it_had_been_claimed_and_started_at_once(own: Hand) -> None:
    assert births_let_through(own) == [USUAL_BIRTH, STARTED_AT_ONCE]


def test_a_job_makes_one_move_at_a_time_or_is_claimed_and_started(own: Hand) -> None:
    assert leaps_let_through(own) == [CLAIMED_AND_STARTED]


def test_any_other_session_makes_one_move_at_a_time(trying: Hand) -> None:
    assert births_let_through(trying) == [USUAL_BIRTH]
    assert leaps_let_through(trying) == []


def test_without_the_guards_more_comes_through(own: Hand) -> None:
    own.drop("keptwork_job_born", "jobs")
    own.drop("keptwork_job_moves", "jobs")
    assert len(births_let_through(own)) > 2
    assert len(leaps_let_through(own)) > 1


def test_a_word_that_holds_the_sign_between_words_is_no_way_round(own: Hand) -> None:
    job = put(own, "job", "running")
    for move, state in (("succeed>succeeded", ""), ("succeed>succeeded>x", "y"), ("", "succeed>succeeded")):
        with own.attempt(moved(job, move, state)) as no:
            assert "no declared move of a job" in str(no)


def test_the_operators_of_a_session_are_not_those_of_the_guard(trying: Hand) -> None:
    trying.run("CREATE SCHEMA mine")
    trying.run("CREATE FUNCTION mine.agree(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
    trying.run("CREATE OPERATOR mine.= (LEFTARG = text, RIGHTARG = text, FUNCTION = mine.agree)")
    trying.run("SET LOCAL search_path = mine, public, pg_catalog")
    job = put(trying, "job", "running")
    with trying.attempt(moved(job, "fly", "NOWHERE")) as no:
        assert "no declared move of a job" in str(no)


def test_conditions_that_are_read_for_every_statement_are_short(hand: Hand) -> None:
    lengths = hand.rows(
        "SELECT tgname, length(tgqual::text) AS long FROM pg_trigger WHERE tgrelid IN ('jobs'::regclass, "
        "'events'::regclass) AND tgqual IS NOT NULL"
    )
    assert lengths
    assert [row for row in lengths if row["long"] > LONGEST_CONDITION] == []

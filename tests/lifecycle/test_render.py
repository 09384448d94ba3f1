"""Lifecycles as text: complete, and the same every time."""

from __future__ import annotations

import json

import pytest

from keptwork.core.decide import Lifecycle, Move, State, Verb
from keptwork.core.lifecycles import BREAKER, JOB, LIFECYCLES, WORKER
from keptwork.core.render import as_json, markdown, mermaid
from tests.lifecycle.expected import EXPECTED

NAMES = list(EXPECTED)


def test_a_small_diagram_in_full():
    assert mermaid(BREAKER) == (
        "stateDiagram-v2\n"
        "    [*] --> CLOSED: create\n"
        "    CLOSED --> OPEN: trip\n"
        "    OPEN --> HALF_OPEN: probe\n"
        "    HALF_OPEN --> CLOSED: close\n"
        "    HALF_OPEN --> OPEN: reopen\n"
        "    OPEN --> CLOSED: reset\n"
        "    HALF_OPEN --> CLOSED: reset\n"
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_diagram_has_every_move_and_every_end(name):
    expected = EXPECTED[name]
    moves = {f"    {source} --> {target}: {trigger}" for trigger, source, target in expected.moves}
    ends = {f"    {state} --> [*]" for state in expected.final}
    first, *lines = mermaid(LIFECYCLES[name]).splitlines()
    assert first == "stateDiagram-v2"
    assert set(lines) == moves | ends | {f"    [*] --> {expected.initial}: {expected.create}"}
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("name", NAMES)
def test_the_json_has_exactly_the_contracts_shape(name):
    expected, found = EXPECTED[name], as_json(LIFECYCLES[name])
    assert list(found) == ["name", "states", "moves"]
    assert found["name"] == name
    assert found["states"] == [{"name": state, "final": state in expected.final} for state in expected.states]
    assert all(list(m) == ["trigger", "verb", "from", "to", "event", "guard"] for m in found["moves"])
    moves = [(m["trigger"], m["from"], m["to"]) for m in found["moves"]]
    assert sorted(moves[1:]) == sorted(expected.moves)
    assert moves[0] == (expected.create, None, expected.initial)
    assert json.loads(json.dumps(found)) == found


def test_the_json_of_one_move():
    moves = as_json(JOB)["moves"]
    assert moves[0] == {
        "trigger": "enqueue",
        "verb": "create",
        "from": None,
        "to": "queued",
        "event": "job_enqueued",
        "guard": "payload valid",
    }
    assert as_json(LIFECYCLES["run"])["moves"][0]["guard"] is None


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_one_row_for_each_move_and_names_every_state(name):
    expected, text = EXPECTED[name], markdown(LIFECYCLES[name])
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == "| trigger | verb | from | to | when | event |"
    assert len(rows) == 2 + len(expected.moves)
    for state in expected.states:
        assert (f"- `{state}` (final)" in text) == (state in expected.final)
    assert f"- `{expected.initial}` (initial)" in text


def test_the_table_says_in_words_who_may_move():
    text = markdown(JOB)
    assert "| succeed | succeed | running | succeeded | lease held; by the lease holder | job_succeeded |" in text
    assert "| queued, epoch + 1 | lease expired, attempts left; by the reaper after the lease expires |" in text
    assert "| user or policy; by the lease holder, an operator or policy |" in text
    assert "Right." not in text


def test_a_final_state_may_have_a_way_out():
    text = mermaid(WORKER)
    assert "COMPLETED --> TERMINATED: terminate" in text
    assert "COMPLETED --> [*]" in text


def test_a_bar_in_a_condition_does_not_break_the_table():
    start, end = State("start"), State("end", final=True)
    moves = (Move("make", Verb.CREATE, (), start), Move("stop", Verb.CANCEL, (start,), end, when="a | b"))
    assert "| a \\| b |" in markdown(Lifecycle("toy", "toys", "toy", (start, end), moves))

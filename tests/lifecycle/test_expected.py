"""Every lifecycle against the tables typed by hand in expected.py: each state × trigger, allowed or not."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.core.lifecycles import LIFECYCLES, Change, Token, Verb, decide
from keptwork.errors import InvalidTransition
from tests.lifecycle.expected import EXPECTED, FORBIDDEN, JOB_EVENTS, Expected

NOW = 1_000_000
OWNER = 5
EPOCH = 2

# A record and facts that every guard agrees to.
AGREEABLE: dict[str, Any] = {
    "id": 7,
    "tenant_id": 1,
    "seq": 3,
    "epoch": EPOCH,
    "owner": OWNER,
    "lease_until": NOW + 1,
    "run_at": NOW,
    "held_by": None,
    "parent_id": None,
    "limit_key": None,
    "step_id": None,
    "crew_id": None,
    "tree_id": None,
    "kind": "kind",
    "attempts": 1,
    "max_attempts": 4,
    "on_exhausted": "dead_letter",
    "depth": 0,
    "worker_count": 1,
    "retry_count": 0,
    "max_retries": 3,
    "failures": 5,
    "failure_threshold": 5,
    "probe_at": NOW,
    "successes": 1,
    "success_threshold": 1,
}
FACTS: dict[str, Any] = {
    "worker_may_claim": True,
    "permanent": True,
    "reason_code": "policy_violation",
    "free_workers": 1,
    "dependencies_met": True,
}
HOLDER = {"token": Token(OWNER, EPOCH)}
# The moves of a job that need a lease in one way or another; all others are an operator's or anybody's.
JOB_CLAIMS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("start", "succeed", "fail", "retry", "release", "snooze"), HOLDER),
    "expire": {"lease_over": True},
}

NAMES = list(EXPECTED)
ALL_TRIGGERS = sorted({t for e in EXPECTED.values() for t in (*e.all_triggers, e.create)} | {"override", "fly"})
GRID = [
    pytest.param(name, state, trigger, id=f"{name}-{state}-{trigger}")
    for name, expected in EXPECTED.items()
    for state in expected.states
    for trigger in sorted(expected.all_triggers | {expected.create})
]


def attempt(name: str, state: str, trigger: str) -> Change | InvalidTransition:
    claim = JOB_CLAIMS.get(trigger, {}) if name == "job" else {}
    record = {**AGREEABLE, "state": state, "lease_until": NOW if trigger == "expire" else NOW + 1}
    return decide(LIFECYCLES[name], record, trigger, now=NOW, **claim, **FACTS)


def targets(expected: Expected, state: str, trigger: str) -> list[str]:
    return [to for t, source, to in expected.moves if (t, source) == (trigger, state)]


def allowed(expected: Expected, state: str) -> list[str]:
    return list(dict.fromkeys(trigger for trigger, source, _ in expected.moves if source == state))


def refusal(name: str, state: str, trigger: str) -> str:
    ways = ", ".join(allowed(EXPECTED[name], state)) or "nothing, the state is final"
    return f"{name} 7 is {state}: cannot {trigger}; allowed: {ways}"


def test_there_are_exactly_these_nine():
    assert list(LIFECYCLES) == NAMES


@pytest.mark.parametrize(("name", "state", "trigger"), GRID)
def test_every_state_and_trigger(name, state, trigger):
    decision = attempt(name, state, trigger)
    expected = targets(EXPECTED[name], state, trigger)
    if expected:
        assert isinstance(decision, Change), decision
        assert [decision.move.target.name] == expected
    else:
        assert isinstance(decision, InvalidTransition)
        assert str(decision) == refusal(name, state, trigger)


@pytest.mark.parametrize("name", NAMES)
def test_triggers_of_other_lifecycles_are_refused(name):
    expected = EXPECTED[name]
    for state in expected.states:
        for trigger in set(ALL_TRIGGERS) - expected.all_triggers:
            assert str(attempt(name, state, trigger)) == refusal(name, state, trigger)


@pytest.mark.parametrize("name", NAMES)
def test_states_and_their_kinds(name):
    lifecycle, expected = LIFECYCLES[name], EXPECTED[name]
    assert tuple(state.name for state in lifecycle.states) == expected.states
    assert frozenset(state.name for state in lifecycle.states if state.final) == expected.final
    assert lifecycle.initial.name == expected.initial
    assert lifecycle.creation.trigger == expected.create
    assert lifecycle.creation.verb is Verb.CREATE


@pytest.mark.parametrize("name", NAMES)
def test_the_moves_are_these_and_no_others(name):
    lifecycle = LIFECYCLES[name]
    declared = [(m.trigger, source.name, m.target.name) for m in lifecycle.moves for source in m.sources]
    assert sorted(declared) == sorted(EXPECTED[name].moves)
    assert len(declared) == len(set(declared))


@pytest.mark.parametrize("name", NAMES)
def test_only_the_moves_back_to_the_queue_raise_the_epoch(name):
    raising = {move.trigger for move in LIFECYCLES[name].moves if move.raises_epoch}
    assert raising == EXPECTED[name].raises_epoch


def test_the_job_names_its_events_as_the_seed_does():
    assert {move.trigger: move.event for move in LIFECYCLES["job"].moves} == JOB_EVENTS


def test_no_two_moves_of_different_triggers_share_an_event():
    events = {(name, move.trigger): move.event for name, found in LIFECYCLES.items() for move in found.moves}
    overrides = [found.override_event for found in LIFECYCLES.values()]
    assert len(set(events.values()) | set(overrides)) == len(events) + len(overrides)


@pytest.mark.parametrize(("name", "source", "target"), FORBIDDEN)
def test_no_move_joins_a_forbidden_pair(name, source, target):
    lifecycle = LIFECYCLES[name]
    reached = {move.target.name for trigger in ALL_TRIGGERS for move in lifecycle.leading_out_of(source, trigger)}
    reached |= {move.target.name for verb in Verb for move in lifecycle.leading_out_of(source, verb)}
    assert target not in reached


def test_a_job_only_grows_in_epoch_and_rank():
    job = LIFECYCLES["job"]
    for move in job.moves:
        for source in move.sources:
            assert (move.raises_epoch, job.rank(move.target.name)) > (False, job.rank(source.name))


# What each guard asks for: lifecycle, state, trigger, and what is changed in the agreeable record and facts.
REFUSED = [
    ("job", "queued", "claim", {"run_at": NOW + 1}, {}),
    ("job", "queued", "claim", {"held_by": "breaker:ruff"}, {}),
    ("job", "queued", "claim", {}, {"queue_paused": True}),
    ("job", "queued", "claim", {}, {"worker_may_claim": False}),
    ("job", "queued", "claim", {}, {"worker_may_claim": None}),
    ("job", "running", "retry", {"attempts": 4}, {}),
    ("job", "assigned", "expire", {"attempts": 4}, {}),
    ("job", "running", "expire", {"attempts": 5}, {}),
    ("job", "running", "fail", {}, {"permanent": False}),
    ("job", "running", "fail", {"on_exhausted": "fail"}, {"permanent": False}),
    ("job", "running", "fail", {"attempts": 4}, {"permanent": False}),
    ("job", "queued", "dead_letter", {}, {"reason_code": None}),
    ("job", "queued", "dead_letter", {}, {"reason_code": "bad_mood"}),
    ("job", "running", "dead_letter", {}, {"reason_code": "exhausted_retries"}),
    (
        "job",
        "running",
        "dead_letter",
        {"attempts": 4, "on_exhausted": "fail"},
        {"reason_code": "exhausted_retries"},
    ),
    ("crew", "SUBMITTED", "validate", {"worker_count": 0}, {}),
    ("crew", "SUBMITTED", "validate", {"worker_count": 11}, {}),
    ("crew", "SUBMITTED", "validate", {"depth": 1}, {}),
    ("crew", "SUBMITTED", "validate", {"depth": 0}, {"parent_depth": 0}),
    ("crew", "SUBMITTED", "validate", {"depth": 1}, {"parent_depth": None}),
    ("crew", "SUBMITTED", "validate", {"depth": 6}, {"parent_depth": 5}),
    ("crew", "PENDING", "allocate_resources", {"worker_count": 2}, {}),
    ("crew", "PENDING", "allocate_resources", {}, {"free_workers": 0}),
    ("run-step", "PENDING", "claim", {}, {"dependencies_met": False}),
    ("run-step", "PENDING", "open_gate", {}, {"dependencies_met": False}),
    ("workstream", "S_FAILED", "retry_eligible", {"retry_count": 3}, {}),
    ("workstream-step", "S_PENDING", "dependencies_met", {}, {"dependencies_met": False}),
    ("workstream-step", "S_FAILED", "retry_eligible", {"retry_count": 3}, {}),
    ("breaker", "CLOSED", "trip", {"failures": 4}, {}),
    ("breaker", "OPEN", "probe", {"probe_at": NOW + 1}, {}),
    ("breaker", "HALF_OPEN", "close", {"successes": 0}, {}),
    ("agent", "PROCESS", "retry", {"retry_count": 3}, {}),
]
AGREED = [
    ("job", "running", "fail", {"attempts": 4, "on_exhausted": "fail"}, {"permanent": False}),
    ("job", "running", "dead_letter", {"attempts": 4}, {"reason_code": "exhausted_retries"}),
    ("job", "queued", "dead_letter", {}, {"reason_code": "parse_error"}),
    ("crew", "SUBMITTED", "validate", {"depth": 5, "worker_count": 10}, {"parent_depth": 4}),
    ("crew", "PENDING", "allocate_resources", {"worker_count": 10}, {"free_workers": 10}),
]


def guarded(name: str, state: str, trigger: str, values: Any, facts: Any) -> Change | InvalidTransition:
    claim = JOB_CLAIMS.get(trigger, {}) if name == "job" else {}
    lease_until = NOW if trigger == "expire" else NOW + 1
    record = {**AGREEABLE, "state": state, "lease_until": lease_until, **values}
    return decide(LIFECYCLES[name], record, trigger, now=NOW, **claim, **{**FACTS, **facts})


@pytest.mark.parametrize(("name", "state", "trigger", "values", "facts"), REFUSED)
def test_a_guard_refuses_and_says_what_it_needs(name, state, trigger, values, facts):
    decision = guarded(name, state, trigger, values, facts)
    assert isinstance(decision, InvalidTransition)
    needs = LIFECYCLES[name].move(trigger).when
    assert f"{name} 7 is {state}: cannot {trigger}, because it needs {needs}; allowed: " in str(decision)


@pytest.mark.parametrize(("name", "state", "trigger", "values", "facts"), AGREED)
def test_a_guard_agrees_at_its_limit(name, state, trigger, values, facts):
    assert isinstance(guarded(name, state, trigger, values, facts), Change)


def test_every_guarded_move_has_a_refusal_in_the_table():
    declared = {(name, m.trigger) for name, found in LIFECYCLES.items() for m in found.moves if m.guard}
    assert {(name, trigger) for name, _, trigger, _, _ in REFUSED} == declared


def test_every_guard_says_in_words_what_it_asks():
    assert all(move.when for found in LIFECYCLES.values() for move in found.moves if move.guard)


def test_a_forgotten_fact_is_refused():
    for name, state, trigger in (
        ("job", "queued", "claim"),
        ("job", "running", "fail"),
        ("job", "queued", "dead_letter"),
        ("crew", "PENDING", "allocate_resources"),
        ("run-step", "PENDING", "claim"),
    ):
        claim = JOB_CLAIMS.get(trigger, {}) if name == "job" else {}
        decision = decide(LIFECYCLES[name], {**AGREEABLE, "state": state}, trigger, now=NOW, **claim)
        assert isinstance(decision, InvalidTransition), (name, trigger)

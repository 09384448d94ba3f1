"""Replay: a log of declared moves rebuilds its entity; a log that was tampered with is told apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.core.decide import OVERRIDE
from keptwork.core.lifecycles import JOB, LIFECYCLES, Lifecycle, Move, Note
from keptwork.core.replay import replay

Event = dict[str, Any]


@dataclass
class Walk:
    """A log being written, and beside it the entity as it should be rebuilt, kept by the simplest means."""

    lifecycle: Lifecycle
    events: list[Event] = field(default_factory=list)
    state: str | None = None
    epoch: int = 0

    def take(self, trigger: str, type: str, target: str, ts: int, raises: bool = False) -> None:
        self.epoch += raises
        source, self.state = self.state, target
        event = {"seq": len(self.events) + 1, "epoch": self.epoch, "ts": ts, "trigger": trigger, "type": type}
        self.events.append({**event, "from_state": source, "to_state": target})

    def make(self, move: Move, ts: int) -> None:
        self.take(move.trigger, move.event, move.target.name, ts, move.raises_epoch)

    def first(self, names: set[str]) -> int | None:
        return next((event["ts"] for event in self.events if event["to_state"] in names), None)

    def ended(self) -> int | None:
        """When the last unbroken stay in final states began."""
        finals = {state.name for state in self.lifecycle.states if state.final}
        since = None
        for event in self.events:
            since = (since if since is not None else event["ts"]) if event["to_state"] in finals else None
        return since


@st.composite
def walks(draw: st.DrawFn, at_least: int = 0) -> Walk:
    """A random way through the declared moves of some lifecycle, with overrides and notes in between."""
    walk = Walk(draw(st.sampled_from(list(LIFECYCLES.values()))))
    lifecycle, ts = walk.lifecycle, draw(st.integers(0, 10**15))
    walk.make(lifecycle.creation, ts)
    for _ in range(draw(st.integers(at_least, 20))):
        ts += draw(st.integers(0, 10**7))
        step(draw, walk, ts)
    return walk


def step(draw: st.DrawFn, walk: Walk, ts: int) -> None:
    lifecycle, state = walk.lifecycle, walk.state
    assert state is not None
    ways = [m for m in lifecycle.moves if state in {s.name for s in m.sources}]
    choices: list[Move | Note | str] = [*ways, *lifecycle.notes, OVERRIDE]
    choice = draw(st.sampled_from(choices))
    if isinstance(choice, Move):
        walk.make(choice, ts)
    elif isinstance(choice, str):
        target = draw(st.sampled_from(lifecycle.states)).name
        walk.take(OVERRIDE, lifecycle.override_event, target, ts, lifecycle.fenced)
    else:
        walk.take(choice.trigger, choice.event, state, ts)


@given(walks())
def test_a_walk_through_declared_moves_rebuilds_the_entity(walk):
    rebuilt = replay(walk.lifecycle, walk.events)
    started = {state.name for state in walk.lifecycle.states if state.started}
    assert rebuilt.problem is None
    assert (rebuilt.state, rebuilt.seq, rebuilt.epoch) == (walk.state, len(walk.events), walk.epoch)
    assert (rebuilt.created_at, rebuilt.updated_at) == (walk.events[0]["ts"], walk.events[-1]["ts"])
    assert rebuilt.started_at == walk.first(started)
    assert rebuilt.completed_at == walk.ended()


@given(walks(at_least=1), st.data())
def test_a_missing_event_is_a_problem(walk, data):
    del walk.events[data.draw(st.integers(0, len(walk.events) - 2))]
    assert "is missing" in str(replay(walk.lifecycle, walk.events).problem)


@given(walks(at_least=1), st.data())
def test_two_events_in_the_wrong_order_are_a_problem(walk, data):
    place = data.draw(st.integers(0, len(walk.events) - 2))
    walk.events[place : place + 2] = reversed(walk.events[place : place + 2])
    assert replay(walk.lifecycle, walk.events).problem


@given(walks(), st.data())
def test_an_event_from_another_state_is_a_problem(walk, data):
    event = data.draw(st.sampled_from(walk.events))
    others = [state.name for state in walk.lifecycle.states if state.name != event["from_state"]]
    event["from_state"] = data.draw(st.sampled_from(others))
    assert "starts from" in str(replay(walk.lifecycle, walk.events).problem)


@given(walks(), st.data())
def test_another_epoch_is_a_problem(walk, data):
    event = data.draw(st.sampled_from(walk.events))
    event["epoch"] += data.draw(st.sampled_from([-1, 1]))
    assert "epoch" in str(replay(walk.lifecycle, walk.events).problem)


@given(walks(), st.data())
def test_an_undeclared_move_is_a_problem(walk, data):
    event = data.draw(st.sampled_from(walk.events))
    event["trigger"] = "fly"
    assert "no declared move" in str(replay(walk.lifecycle, walk.events).problem)


@given(walks(), st.data())
def test_an_event_type_of_another_move_is_a_problem(walk, data):
    event = data.draw(st.sampled_from(walk.events))
    event["type"] = "job_flown"
    assert "no declared move" in str(replay(walk.lifecycle, walk.events).problem)


@given(walks(at_least=1), st.data())
def test_an_event_older_than_the_one_before_is_a_problem(walk, data):
    place = data.draw(st.integers(1, len(walk.events) - 1))
    walk.events[place]["ts"] = walk.events[place - 1]["ts"] - 1
    assert "older" in str(replay(walk.lifecycle, walk.events).problem)


@given(walks(at_least=2), st.data())
def test_replay_stops_before_the_first_event_that_does_not_fit(walk, data):
    place = data.draw(st.integers(1, len(walk.events) - 1))
    walk.events[place]["trigger"] = "fly"
    rebuilt = replay(walk.lifecycle, walk.events)
    assert (rebuilt.seq, rebuilt.state) == (place, walk.events[place - 1]["to_state"])


# --- the job's log, by hand ---------------------------------------------------------------------------------


def job_log(*steps: tuple[str, str, str | None, str, int]) -> list[Event]:
    names = ("trigger", "type", "from_state", "to_state", "epoch")
    return [{"seq": n, "ts": n * 10, **dict(zip(names, made, strict=True))} for n, made in enumerate(steps, 1)]


ENQUEUED = ("enqueue", "job_enqueued", None, "queued", 0)
CLAIMED = ("claim", "job_claimed", "queued", "assigned", 0)
STARTED = ("start", "job_started", "assigned", "running", 0)


def test_a_retried_job_keeps_its_first_start_and_ends_once():
    again = (
        ("claim", "job_claimed", "queued", "assigned", 1),
        ("start", "job_started", "assigned", "running", 1),
    )
    retried = ("retry", "job_retry_scheduled", "running", "queued", 1)
    done = ("succeed", "job_succeeded", "running", "succeeded", 1)
    rebuilt = replay(JOB, job_log(ENQUEUED, CLAIMED, STARTED, retried, *again, done))
    assert (rebuilt.state, rebuilt.seq, rebuilt.epoch, rebuilt.problem) == ("succeeded", 7, 1, None)
    assert (rebuilt.created_at, rebuilt.started_at, rebuilt.completed_at) == (10, 30, 70)


BROKEN = {
    "nothing before it": ([STARTED], "event 1 starts from assigned, not from nothing"),
    "created by an override": ([("override", "job_overridden", None, "queued", 1)], "no declared move"),
    "created by a note": ([("compensate", "job_compensated", None, None, 0)], "no declared move"),
    "created twice": ([ENQUEUED, ENQUEUED], "event 2 starts from None, not from queued"),
    "overridden into no state": (
        [ENQUEUED, ("override", "job_overridden", "queued", "limbo", 1)],
        "no declared move: queued –override→ limbo (job_overridden)",
    ),
    "an override that kept the epoch": (
        [ENQUEUED, ("override", "job_overridden", "queued", "failed", 0)],
        "epoch",
    ),
    "an override dressed as a move": (
        [ENQUEUED, ("override", "job_failed", "queued", "failed", 1)],
        "no declared",
    ),
    "a note that moved": (
        [ENQUEUED, ("compensate", "job_compensated", "queued", "running", 0)],
        "no declared",
    ),
    "a leap": ([ENQUEUED, ("start", "job_started", "queued", "running", 0)], "no declared move"),
    "the wrong target": ([ENQUEUED, ("claim", "job_claimed", "queued", "running", 0)], "no declared move"),
    "a retry that kept the epoch": (
        [ENQUEUED, CLAIMED, STARTED, ("retry", "job_retry_scheduled", "running", "queued", 0)],
        "event 4 has epoch 0 after 0",
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_log_is_told_apart(case):
    steps, problem = case
    assert problem in str(replay(JOB, job_log(*steps)).problem)


def test_no_events_are_no_entity():
    assert replay(JOB, []).seq == 0

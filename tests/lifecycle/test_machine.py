"""The kernel on toy lifecycles: what a declaration may not say, which move wins, and who may make it."""

from __future__ import annotations

import copy
import doctest
from types import MappingProxyType
from typing import Any

import pytest

from keptwork.core import decide as machine
from keptwork.core.decide import Change, Lifecycle, Move, Note, Right, State, Token, Verb, decide, insist
from keptwork.errors import BadLifecycle, InvalidTransition

NOW = 1_000
OWNER = 5
NEW, BUSY, DONE = State("new"), State("busy"), State("done", final=True)
CREATE = Move("create", Verb.CREATE, (), NEW)
GO = Move("go", Verb.START, (NEW,), BUSY)
END = Move("end", Verb.SUCCEED, (BUSY,), DONE)


def toy(*moves: Move, states: tuple[State, ...] = (NEW, BUSY, DONE), notes: tuple[Note, ...] = ()) -> Lifecycle:
    return Lifecycle(name="toy", table="toys", prefix="toy", states=states, moves=moves, notes=notes)


def record(state: State, **values: Any) -> dict[str, Any]:
    return {"id": 7, "tenant_id": 1, "state": state.name, "seq": 3, "epoch": 2, **values}


def refusal(decision: Change | InvalidTransition) -> str:
    assert isinstance(decision, InvalidTransition)
    return str(decision)


# --- declarations that contradict themselves ----------------------------------------------------------------


def test_a_sound_declaration_is_accepted():
    lifecycle = toy(CREATE, GO, END)
    assert lifecycle.initial is NEW
    assert lifecycle.triggers == ("go", "end")


BACK = Move("back", Verb.RETRY, (BUSY,), NEW)
RAISED = Move("raised", Verb.EXPIRE, (BUSY,), NEW, raises_epoch=True)
UNDECLARED = State("elsewhere")

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no creation": ({"moves": (GO, END)}, "exactly one move that creates it, not 0"),
    "two creations": (
        {"moves": (CREATE, Move("make", Verb.CREATE, (), BUSY), GO, END)},
        "exactly one move that creates it, not 2",
    ),
    "a state twice": (
        {"moves": (CREATE, GO, END), "states": (NEW, BUSY, DONE, NEW)},
        "new is declared twice",
    ),
    "an undeclared target": (
        {"moves": (CREATE, GO, END, Move("leave", Verb.CANCEL, (BUSY,), UNDECLARED))},
        "leave names the undeclared state elsewhere",
    ),
    "an undeclared source": (
        {"moves": (CREATE, GO, END, Move("come", Verb.CANCEL, (UNDECLARED,), DONE))},
        "come names the undeclared state elsewhere",
    ),
    "a state under another description": (
        {"moves": (CREATE, GO, END, Move("again", Verb.RETRY, (State("done"),), NEW))},
        "again names the undeclared state done",
    ),
    "a way out of a final state": (
        {"moves": (CREATE, GO, END, Move("revive", Verb.RETRY, (DONE,), NEW))},
        "revive leaves the final state done undeclared",
    ),
    "a move called override": (
        {"moves": (CREATE, GO, END, Move("override", Verb.CANCEL, (NEW,), DONE))},
        "the trigger override is taken",
    ),
    "a move called like a note": (
        {"moves": (CREATE, GO, END), "notes": (Note("go", "toy_noted"),)},
        "the trigger go is taken",
    ),
    "one trigger twice from one state": (
        {"moves": (CREATE, GO, END, Move("go", Verb.START, (NEW,), DONE))},
        "go is declared twice from one state without a guard",
    ),
    "an island": (
        {
            "moves": (CREATE, GO, END, Move("off", Verb.CANCEL, (UNDECLARED,), DONE)),
            "states": (NEW, BUSY, DONE, UNDECLARED),
        },
        "state elsewhere cannot be reached",
    ),
    "a dead end": (
        {"moves": (CREATE, GO), "states": (NEW, BUSY)},
        "state busy has no way out and is not final",
    ),
    "a step back within an epoch": (
        {"moves": (CREATE, GO, END, RAISED, BACK)},
        "back goes back from busy to new without raising the epoch",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_declaration_that_contradicts_itself_is_refused_at_import(wrong):
    declaration, problem = wrong
    moves, rest = declaration["moves"], {k: v for k, v in declaration.items() if k != "moves"}
    with pytest.raises(BadLifecycle) as caught:
        toy(*moves, **rest)
    assert str(caught.value).startswith("The toy lifecycle is wrong: ")
    assert problem in str(caught.value)


def test_a_move_may_leave_a_final_state_when_it_says_so():
    revive = Move("revive", Verb.RETRY, (DONE,), NEW, leaves_final=True)
    assert toy(CREATE, GO, END, revive).allowed_from("done") == ("revive",)


def test_steps_back_are_allowed_where_no_epoch_exists():
    assert toy(CREATE, GO, END, BACK).allowed_from("busy") == ("end", "back")


def test_an_event_without_a_name_is_called_by_entity_and_trigger():
    lifecycle = Lifecycle("toy-box", "toys", "toy", (NEW, BUSY, DONE), (CREATE, GO, END))
    assert [move.event for move in lifecycle.moves] == ["toy_box_create", "toy_box_go", "toy_box_end"]
    assert lifecycle.override_event == "toy_box_overridden"


# --- which move is made -------------------------------------------------------------------------------------


CHOOSY = toy(
    CREATE,
    Move("go", Verb.START, (NEW,), BUSY, when="a small size", guard=lambda r, f: r["size"] < 3),
    Move(
        "go",
        Verb.START,
        (NEW,),
        DONE,
        when="an even size, or force",
        guard=lambda r, f: bool(r["size"] % 2 == 0 or f.get("force")),
    ),
    END,
)


@pytest.mark.parametrize(("size", "target"), [(1, "busy"), (2, "busy"), (4, "done")])
def test_the_first_move_whose_guard_agrees_wins(size, target):
    assert insist(decide(CHOOSY, record(NEW, size=size), "go")).move.target.name == target


def test_a_guard_sees_the_facts():
    assert insist(decide(CHOOSY, record(NEW, size=5), "go", force=True)).move.target is DONE


def test_a_guard_that_disagrees_is_named_in_the_refusal():
    message = refusal(decide(CHOOSY, record(NEW, size=5), "go"))
    assert message == "toy 7 is new: cannot go, because it needs an even size, or force; allowed: go"


def test_a_move_is_found_by_the_engines_verb_too():
    lifecycle = toy(CREATE, GO, END)
    assert insist(decide(lifecycle, record(NEW), Verb.START)).move.trigger == "go"
    assert insist(decide(lifecycle, record(BUSY), Verb.SUCCEED)).move.trigger == "end"


def test_a_verb_is_no_trigger_and_a_trigger_no_verb():
    lifecycle = toy(CREATE, GO, END)
    assert refusal(decide(lifecycle, record(NEW), "start")) == "toy 7 is new: cannot start; allowed: go"
    assert refusal(decide(lifecycle, record(NEW), Verb.SUCCEED)) == "toy 7 is new: cannot succeed; allowed: go"


def test_a_refusal_names_state_trigger_and_what_is_allowed():
    decision = decide(toy(CREATE, GO, END), record(BUSY), "go")
    assert refusal(decision) == "toy 7 is busy: cannot go; allowed: end"
    assert isinstance(decision, InvalidTransition)
    assert (decision.from_state, decision.trigger, decision.allowed) == ("busy", "go", ("end",))
    assert (decision.status, decision.exit_code) == (409, 1)


def test_a_refusal_in_a_final_state_says_so():
    assert refusal(decide(toy(CREATE, GO, END), record(DONE), "go")).endswith("allowed: nothing, the state is final")


def test_insist_raises_the_refusal():
    with pytest.raises(InvalidTransition, match="toy 7 is new: cannot end; allowed: go"):
        insist(decide(toy(CREATE, GO, END), record(NEW), "end"))


def test_a_change_says_what_must_still_hold_and_what_follows():
    change = insist(
        decide(FENCED, record(BUSY, owner=OWNER, lease_until=NOW + 1), "raised", now=NOW, token=Token(OWNER, 2))
    )
    assert (change.id, change.tenant_id, change.from_state, change.seq, change.epoch) == (7, 1, "busy", 3, 2)
    assert (change.right, change.owner, change.next_epoch) == (Right.HOLDER, OWNER, 3)


# --- by what right ------------------------------------------------------------------------------------------


def owned(trigger: str, right: Right | None) -> Move:
    rights = frozenset({right}) if right else frozenset({Right.HOLDER, Right.REAPER, Right.OPERATOR})
    return Move(trigger, Verb.SUCCEED, (BUSY,), DONE, rights=rights)


FENCED = toy(
    CREATE,
    GO,
    owned("finish", Right.HOLDER),
    owned("reap", Right.REAPER),
    owned("stop", Right.OPERATOR),
    owned("any", None),
    Move("raised", Verb.EXPIRE, (BUSY,), NEW, raises_epoch=True, rights=frozenset({Right.HOLDER})),
)
HELD = record(BUSY, owner=OWNER, lease_until=NOW + 1)
OVER = record(BUSY, owner=OWNER, lease_until=NOW)
UNLEASED = record(BUSY, owner=None, lease_until=None)
TOKEN = Token(OWNER, 2)

ENTITLED = [
    ("finish", HELD, {"token": TOKEN}),
    ("reap", OVER, {"lease_over": True}),
    ("stop", HELD, {}),
    ("stop", UNLEASED, {}),
    ("any", HELD, {"token": TOKEN}),
    ("any", OVER, {"lease_over": True}),
    ("any", HELD, {}),
]
NOT_ENTITLED = {
    "the holder under an older epoch": ("finish", HELD, {"token": Token(OWNER, 1)}),
    "another owner": ("finish", HELD, {"token": Token(OWNER + 1, 2)}),
    "the holder after the lease": ("finish", OVER, {"token": TOKEN}),
    "a holder where there is no lease": ("finish", UNLEASED, {"token": TOKEN}),
    "a nobody where there is no lease": ("finish", UNLEASED, {"token": Token(None, 2)}),  # type: ignore[arg-type]
    "an operator in the holder's place": ("finish", HELD, {}),
    "the reaper in the holder's place": ("finish", OVER, {"lease_over": True}),
    "the reaper before the end of the lease": ("reap", HELD, {"lease_over": True}),
    "the reaper where there is no lease": ("reap", UNLEASED, {"lease_over": True}),
    "the holder in the reaper's place": ("reap", HELD, {"token": TOKEN}),
    "an operator in the reaper's place": ("reap", OVER, {}),
    "the holder in the operator's place": ("stop", HELD, {"token": TOKEN}),
    "a stale holder of a move for all": ("any", HELD, {"token": Token(OWNER, 1)}),
    "an early reaper of a move for all": ("any", HELD, {"lease_over": True}),
}


@pytest.mark.parametrize(("trigger", "found", "claim"), ENTITLED)
def test_whoever_has_the_right_may_move(trigger, found, claim):
    assert insist(decide(FENCED, found, trigger, now=NOW, **claim)).move.trigger == trigger


@pytest.mark.parametrize("case", NOT_ENTITLED.values(), ids=NOT_ENTITLED.keys())
def test_whoever_lacks_the_right_is_refused(case):
    trigger, found, claim = case
    assert f"cannot {trigger}, because it needs " in refusal(decide(FENCED, found, trigger, now=NOW, **claim))


def test_the_refusal_says_which_right_is_missing():
    assert "needs the lease, still held under the same epoch;" in refusal(decide(FENCED, HELD, "finish", now=NOW))
    assert "needs an expired lease;" in refusal(decide(FENCED, HELD, "reap", now=NOW))


def test_a_change_holds_only_while_nothing_has_moved_and_the_right_stands():
    change = insist(decide(FENCED, HELD, "finish", now=NOW, token=TOKEN))
    assert change.still_holds(HELD, NOW)
    assert not change.still_holds({**HELD, "seq": 4}, NOW)
    assert not change.still_holds({**HELD, "epoch": 3}, NOW)
    assert not change.still_holds({**HELD, "state": "new"}, NOW)
    assert not change.still_holds({**HELD, "owner": OWNER + 1}, NOW)
    assert not change.still_holds(HELD, NOW + 1)


def test_deciding_changes_nothing_and_is_repeatable():
    before = copy.deepcopy(HELD)
    frozen = MappingProxyType(HELD)
    decisions = [decide(FENCED, frozen, "finish", now=NOW, token=TOKEN) for _ in range(2)]
    assert decisions[0] == decisions[1]
    assert before == HELD


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(machine).failed == 0

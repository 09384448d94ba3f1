"""A flow file is right, or every problem with it is named, with its line."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.errors import BadFlow
from keptwork.flows.definition import VALUES, Input
from keptwork.flows.validation import from_text, load, misfit

RELEASE = """name: release-check
kind: workstream
budget_usd: 2.00
max_retries: 1
inputs:
  env: {type: string, default: prod, choices: [prod, staging]}
steps:
  - {id: lint,  tool: ruff, args: [check, src]}
  - {id: test,  command: [pytest, -q], expected_exit_codes: [0, 5], timeout: 10m, retries: 2, depends_on: [lint]}
  - {id: notes, agent: "Summarise in three lines: ${test.stdout}", tier: haiku, depends_on: [test]}
  - {id: sign,  approval: {by: ops, expires: 24h}, depends_on: [notes], when: '${inputs.env} == "prod"'}
  - {id: ship,  call: "shop.release:publish", with: {notes: "${notes.text}"}, depends_on: [sign]}
"""


def problems(text: str) -> list[tuple[int | str, str]]:
    with pytest.raises(BadFlow) as refusal:
        load(text, "flow.yaml")
    return [(int(line), what) for line, what in refusal.value.problems]


def steps(*lines: str) -> str:
    return "name: f\nsteps:\n" + "".join(f"  - {line}\n" for line in lines)


def test_a_flow_as_the_documentation_has_it_is_right():
    flow = load(RELEASE, "release.yaml")
    assert [step.kind for step in flow.steps] == ["tool", "command", "agent", "approval", "call"]
    assert flow.dependencies["ship"] == ["sign"]
    assert flow.steps[1].expected_exit_codes == [0, 5]


def test_in_a_run_each_step_comes_after_the_one_before_it():
    text = "name: r\nkind: run\nsteps:\n  - {id: a, command: [x]}\n  - {id: b, command: [x, '${a.stdout}']}\n"
    assert load(text, "r.yaml").dependencies == {"a": [], "b": ["a"]}


A = "{id: a, command: [x]}"

WRONG = [
    ("", 1, "the file is empty"),
    ("- a\n- b\n", 1, "a flow is a mapping"),
    ("name: f\nsteps: [\n", 3, "this is no YAML"),
    ("name: f\nname: g\nsteps: []\n", 2, "'name' stands here a second time"),
    ('{"name": "f", "steps": [{"id": "a", "command": ["\\ud83c"]}]}', 1, "it holds half of a character"),
    ("name: f\n", 1, "steps is missing"),
    ("name: f\nsteps: []\n", 2, "steps: it should have at least 1 of them; it has 0"),
    (steps("{id: a, command: []}"), 3, "steps[1].command: it should have at least 1 of them; it has 0"),
    (steps("{id: true, command: [x]}"), 3, "it should be a string; it is True; put text like that in quotes"),
    (steps("{id: a, command: [x], idempotent: no}"), 3, "should be a boolean; it is 'no'; write true or false"),
    ("name: f\ninputs:\n  b: {type: boolean, default: yes}\nsteps:\n  - " + A, 3, "it is 'yes'; write true or false"),
    ("name: a b\nsteps:\n  - " + A, 1, "'a b' is no name"),
    ("name: f\nkind: runn\nsteps:\n  - " + A, 2, "it should be 'workstream' or 'run'; it is 'runn'"),
    ("name: f\nbudget_usd: much\nsteps:\n  - " + A, 2, "an amount of dollars"),
    ("name: f\nbudget_usd: -1\nsteps:\n  - " + A, 2, "between 0 and 1,000,000"),
    ("name: f\nbudget_usd: .nan\nsteps:\n  - " + A, 2, ".nan is no number that could be kept"),
    (steps("{id: a, call: 'm:f', with: {n: -.inf}}"), 3, "-.inf is no number that could be kept"),
    (steps("{id: a, call: 'm:f', with: {n: !!binary aGk=}}"), 3, "the tag !!binary is not supported"),
    (steps("{id: a, command: [x, ~]}"), 3, "steps[1].command[2]: it should be a string"),
    (steps("{id: a, comand: [x]}"), 3, "steps[1].comand is no key that is known here; did you mean command?"),
    (steps("{id: a}"), 3, "exactly one of tool, command"),
    (steps("{id: a, command: [x], tool: y}"), 3, "this one has tool and command"),
    (steps("{id: a, command: x -y}"), 3, "steps[1].command: it should be a list; it is 'x -y'"),
    (steps("{id: a, command: [x, {b: 1}]}"), 3, "a string or an integer or a number or a boolean; it is {'b': 1}"),
    (steps(A, "{id: b, command: [x], timeout: 10 minutes}"), 4, "'10 minutes' is no duration; write one like 30s"),
    (steps("{id: a, command: [x], retries: '3'}"), 3, "steps[1].retries: it should be an integer; it is '3'"),
    (steps("{id: a, command: [x], tier: haiku}"), 3, "tier belongs to a step of kind agent, not to command"),
    (steps("{id: a, call: os.system}"), 3, "write module:function"),
    (steps(A, A), 3, "2 steps are called a"),
    (steps("{id: inputs, command: [x]}"), 3, "cannot be called inputs"),
    (steps("{id: a, command: [x], depends_on: [z]}"), 3, "a depends on z, and there is no such step"),
    (steps("{id: a, command: [x], depends_on: a}"), 3, "wait for one another: a → a"),
    (
        steps("{id: a, command: [x, '${b.stdout}']}", "{id: b, command: [x]}"),
        3,
        "does not come after it; add depends_on",
    ),
    (steps("{id: a, command: [x, '${c.stdout}']}"), 3, "a uses ${c.stdout}, and there is no such step"),
    (steps(A, "{id: b, command: [x, '${a}'], depends_on: [a]}"), 4, "which is a whole step"),
    (steps("{id: a, command: [x, '${inputs.z}']}"), 3, "the flow has no such input"),
    (steps("{id: a, command: [x, '${item.z}']}"), 3, "only in a step with for_each"),
    (steps("{id: a, command: [x, '${flow.secret}']}"), 3, "only id and name"),
    (steps("{id: a, command: [x, '${a b}']}"), 3, "is no reference"),
    (steps("{id: a, command: [x, '${flow.id']}"), 3, "'${flow.id' has no closing brace"),
    (steps(A, "{id: b, call: 'm:f', with: {n: '${a.stdot}'}, depends_on: a}"), 4, "of kind command has no such value"),
    (steps("{id: a, agent: hi}", "{id: b, command: [x, '${a.cost}'], depends_on: a}"), 4, "cost_micros, cost_usd"),
    (
        steps("{id: a, command: [x], for_each: {items: [1]}}", "{id: b, agent: '${a.stdout}', depends_on: a}"),
        4,
        "a step with for_each has no such value; it has: count, items",
    ),
    (steps("{id: a, command: [x], timeout: 0s}"), 3, "steps[1].timeout: '0s' leaves no time at all"),
    (steps("{id: a, command: [x], env: {KEPTWORK_KEY: k}}"), 3, "steps[1].env: KEPTWORK_KEY is kept from tools"),
    (steps("{id: a, command: [x], env: {a=b: k}}"), 3, "steps[1].env: 'a=b' names no variable"),
    (steps("{id: a, command: [x], when: 'import os'}"), 3, "is no condition"),
    (steps("{id: a, command: [x], when: '__import__(1)'}"), 3, "compares values"),
    (steps("{id: a, command: [x], when: 'prod == 1'}"), 3, "'prod' means nothing in a condition; text needs quotes"),
    ("name: f\nkind: run\nsteps:\n  - {id: a, command: [x], when: '1 == 1'}", 4, "when has no meaning in a run"),
    ("name: f\nkind: run\nsteps:\n  - {id: a, command: [x], depends_on: []}", 4, "depends_on has no meaning in a run"),
    (
        "name: f\nsteps:\n  - id: a\n    approval: {}\n    timeout: 1h",
        5,
        "timeout has no meaning in a step of kind approval; approval: {expires: …} says how long it waits",
    ),
    ("name: f\nsteps:\n  - {id: a, flow: b, retries: 2}", 3, "retries has no meaning in a step of kind flow; the flow"),
    (
        "name: f\nsteps:\n  - {id: a, flow: b, budget_usd: 2}",
        3,
        "budget_usd has no meaning in a step of kind flow; write it at the top of the outermost flow",
    ),
    ("name: f\nsteps:\n  - {id: a, crew: {task: t}, backoff: 1s}", 3, "backoff has no meaning in a step of kind crew"),
    ("name: f\ninputs:\n  n: {type: integer, default: x}\nsteps:\n  - " + A, 3, "should be of type integer"),
    ("name: f\ninputs:\n  n: {choices: [a], default: x}\nsteps:\n  - " + A, 3, "should be one of a"),
    ("name: f\ninputs:\n  n: {required: true, default: x}\nsteps:\n  - " + A, 3, "would never be used"),
    ("name: !!python/object:os.system f\nsteps:\n  - " + A, 1, "the tag !!python/object:os.system is not supported"),
    ("name: f\nx: &a [1]\nsteps:\n  - {<<: *a, id: a}", 4, "<< is not supported"),
]


@pytest.mark.parametrize(("text", "line", "what"), WRONG, ids=[what[:40] for _, _, what in WRONG])
def test_every_mistake_is_named_with_its_line(text, line, what):
    found = problems(text)
    assert [problem for problem in found if problem[0] == line and what in problem[1]], found


TEXTS = "no No yes on off y 1_000 1:30 1.5:30 0b11 2026-01-02 = << 0o8 1e + . nullable tRUE +0x1F -.nan 12e03x"
NUMBERS = {"010": 10, "-0": 0, "+5": 5, "0o17": 15, "0x1F": 31, "1.10": 1.1, "1.": 1.0, ".5": 0.5, "1e3": 1000.0}
OTHERS = {"true": True, "FALSE": False, "~": None, "null": None, "Null": None}
WORDS: dict[str, object] = {**{word: word for word in TEXTS.split()}, **NUMBERS, **OTHERS}


@pytest.mark.parametrize(("word", "value"), WORDS.items())
def test_words_without_quotes_have_the_types_of_yaml_1_2_wherever_they_stand(word, value):
    text = f"name: f\ninputs: {{n: {{type: string, choices: [x, {word}], default: x}}}}\nsteps:\n"
    flow = load(f"{text}  - {{id: a, call: 'm:f', with: {{n: {word}, deep: [{{m: {word}}}]}}}}\n", "f")
    given = flow.steps[0].with_
    assert repr(given) == repr({"n": value, "deep": [{"m": value}]})
    assert repr(flow.inputs["n"].choices) == repr(["x", value])


TYPED: dict[Literal["integer", "number", "boolean"], tuple[type, ...]]
TYPED = {"integer": (int,), "number": (int, float), "boolean": (bool,)}


@pytest.mark.parametrize(("word", "value"), WORDS.items())
def test_a_typed_input_is_read_on_the_command_line_as_in_a_file(word, value):
    for kind, types in TYPED.items():
        read = from_text(Input(type=kind), word)
        assert repr(read) == repr(value)
        fits = isinstance(value, types) and isinstance(value, bool) == (kind == "boolean")
        assert (misfit(Input(type=kind), read) is None) == fits
    assert from_text(Input(type="string"), word) == word


@pytest.mark.parametrize(
    "word", [".inf", "-.INF", ".nan", "1e999", "9" * 5_000, f"0x{'f' * 5_000}", "!!bool yes", "!!int 1_000"]
)
def test_what_is_no_number_or_no_word_of_its_tag_is_refused_with_its_line(word):
    ((line, what),) = problems(steps(f"{{id: a, call: 'm:f', with: {{n: {word}}}}}"))
    assert line == 3
    assert what.endswith("put text like that in quotes")


def test_a_character_that_json_writes_as_two_halves_is_one():
    written = json.dumps({"name": "f", "steps": [{"id": "a", "command": ["echo", "🎉"], "env": {"A": "🎉"}}]})
    assert "\\ud83c" in written
    (step,) = load(written, "f.yaml").steps
    assert (step.command, step.env) == (["echo", "🎉"], {"A": "🎉"})


WRITTEN = (
    "1.10, 010, 007, 1_000, 0x1F, 12:30, 1.5:30, +5, 1e3, yes, No, on, TRUE, 2026-01-02, =, <<, .5, .inf, !!int 08"
)


def test_what_a_program_is_given_is_what_is_written():
    texts = [text.removeprefix("!!int ") for text in WRITTEN.split(", ")]
    flow = load(
        steps(f"{{id: a, command: [{WRITTEN}], env: {{V: 1.10, W: no}}}}", f"{{id: b, tool: t, args: [{WRITTEN}]}}"),
        "f",
    )
    assert (flow.steps[0].command, flow.steps[1].args, flow.steps[0].env) == (texts, texts, {"V": "1.10", "W": "no"})


def test_dates_and_times_of_day_are_text_and_other_values_have_their_types():
    given = "{day: 2026-01-02, at: 2026-01-02 10:00:00, from: 12:30, n: 10, share: 1.5, no: false, none: ~}"
    assert load(steps(f"{{id: a, call: 'm:f', with: {given}}}"), "f").steps[0].with_ == {
        "day": "2026-01-02",
        "at": "2026-01-02 10:00:00",
        "from": "12:30",
        "n": 10,
        "share": 1.5,
        "no": False,
        "none": None,
    }


def test_every_value_that_a_step_may_have_can_be_used():
    kinds = {"tool": "t", "command": "[x]", "agent": "hi", "approval": "{}", "crew": "{task: x}", "flow": "other"}
    for kind, values in VALUES.items():
        used = ", ".join(f"'${{a.{name}}}'" for name in values)
        load(steps(f"{{id: a, {kind}: {kinds[kind]}}}", f"{{id: b, command: [{used}], depends_on: a}}"), "f")
    load(steps("{id: a, call: 'm:f'}", "{id: b, command: ['${a.anything.at[1].all}'], depends_on: a}"), "f")


def test_all_mistakes_are_named_at_once():
    text = "name: a b\nkind: no\nsteps:\n  - {id: a, comand: [x]}\n  - {id: b, command: y}\n"
    assert sorted(line for line, _ in problems(text)) == [1, 2, 4, 5]


def test_references_to_references_do_not_grow_without_bound():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 50,000 parts" in problems("\n".join(lines))[0][1]


def test_what_is_nested_without_end_is_refused():
    assert "nested" in problems("a: " + "[" * 500 + "]" * 500)[0][1]
    assert "nested too deeply" in problems("a: " + "[" * 100_000)[0][1]


@given(st.text(max_size=200) | st.recursive(st.none() | st.text(max_size=5), st.lists, max_leaves=10).map(json.dumps))
def test_whatever_a_file_holds_it_is_a_flow_or_refused(text):
    found: list[tuple[int | str, str]] = [(1, "a flow")]
    try:
        load(text, "any.yaml")
    except BadFlow as refusal:
        found = [(int(line), what) for line, what in refusal.problems]
    assert found
    assert all(isinstance(line, int) and line >= 1 and what for line, what in found)

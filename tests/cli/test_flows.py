"""`keptwork flows` as its users meet it."""

from __future__ import annotations

import json

import pytest

from tests.flow.test_check import RELEASE, WRONG
from tests.support.command import run as keptwork


@pytest.fixture
def release(tmp_path):
    path = tmp_path / "release.yaml"
    path.write_text(RELEASE)
    return path


def test_check_says_that_nothing_is_wrong(release):
    done = keptwork("flows", "check", str(release))
    assert (done.returncode, done.stdout) == (0, "release-check: workstream of 5 steps, nothing wrong.\n")


def test_check_names_file_and_line_of_every_problem_and_goes_on_with_the_next_file(release, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: f\nsteps:\n  - {id: a, comand: [x]}\n")
    done = keptwork("flows", "check", str(bad), str(tmp_path / "none.yaml"), str(release))
    assert done.returncode == 2
    assert f"{bad}:3: steps[1].comand is no key that is known here; did you mean command?" in done.stdout
    assert "none.yaml cannot be read: No such file or directory" in done.stdout
    assert "nothing wrong" in done.stdout


def test_what_a_step_gives_the_flow_inside_it_is_held_against_the_inputs_of_that(tmp_path):
    inner = "name: inner\ninputs: {who: {required: true}, n: {type: integer, default: 1}}\nsteps:\n"
    (tmp_path / "inner.yaml").write_text(f"{inner}  - {{id: a, command: [x, '${{inputs.who}}']}}\n")
    outer, lines = tmp_path / "outer.yaml", ["name: outer", "inputs: {x: {}}", "steps:"]
    lines += [f"  - {{id: s{n}, flow: inner.yaml, with: {{{given}}}}}" for n, given in enumerate(GIVEN)]
    outer.write_text("\n".join(lines))
    assert keptwork("flows", "check", str(outer)).stdout.splitlines() == [
        f"{outer}:5: s1 gives whom, and the flow inner has no such input; it has: who, n",
        f"{outer}:5: s1 gives no who, which the flow inner needs",
        f"{outer}:6: s2 gives n, which should be of type integer; it is 'x'",
    ]


GIVEN = ("who: ann, n: 2", "whom: ann", "who: ann, n: x", "who: ann, n: '${inputs.x}'")


def test_check_as_json(release, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(WRONG[3][0])
    done = keptwork("flows", "check", "--json", str(release), str(bad))
    good, wrong = json.loads(done.stdout)
    assert (good["ok"], good["problems"], wrong["ok"], wrong["problems"][0]["line"]) == (True, [], False, 2)


def test_graph_shows_what_can_run_side_by_side(tmp_path):
    path = tmp_path / "wide.yaml"
    path.write_text(
        "name: wide\nsteps:\n  - {id: a, command: [x]}\n  - {id: b, command: [x]}\n"
        "  - {id: c, command: [x], depends_on: [a, b]}\n"
    )
    assert json.loads(keptwork("flows", "graph", "--json", str(path)).stdout)["levels"] == [["a", "b"], ["c"]]
    drawn = keptwork("flows", "graph", str(path)).stdout.splitlines()
    assert [line[:7] for line in drawn[1:]] == ["  1 ┌ a", "    └ b", "  2 ─ c"]
    assert "s0 --> s2" in keptwork("flows", "graph", "--mermaid", str(path)).stdout


def test_the_schema_knows_every_key_of_the_documented_flow():
    schema = json.loads(keptwork("flows", "schema").stdout)
    assert {"name", "kind", "inputs", "budget_usd", "steps"} <= schema["properties"].keys()
    assert {"tool", "command", "call", "agent", "approval", "with"} <= schema["$defs"]["Step"]["properties"].keys()
    assert schema["additionalProperties"] is False
    assert [one["type"] for one in schema["$defs"]["Step"]["properties"]["depends_on"]["anyOf"]] == ["array", "string"]

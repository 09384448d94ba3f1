"""`keptwork run` a second time: with another file, another configuration, or under a key that is taken."""

from __future__ import annotations

import json

import pytest

from tests.cli.flow_stage import Stage, flow_id, refusal

FAILS = {"id": "a", "command": ["false"]}
INNER = {"id": "inner", "flow": "inner.yaml", "depends_on": ["a"]}


def test_who_mends_a_file_is_told_that_the_flow_goes_on_as_it_was_started(here: Stage) -> None:
    def tells() -> bool:
        again = here.run(file, "--resume", id)
        assert again.returncode == 1
        return f"{file} is not what {id} was started with; it goes on as it was started" in again.stderr

    here.write("inner.yaml", FAILS)
    file = str(here.write("f.yaml", FAILS, INNER))
    id = flow_id(here.run(file).stderr)
    assert not tells()
    here.write("inner.yaml", {**FAILS, "command": ["true"]})
    assert tells()
    here.write("inner.yaml", FAILS)
    here.write("f.yaml", {**FAILS, "command": ["true"]}, INNER)
    assert tells()


def test_a_key_that_has_made_one_flow_is_not_taken_for_another(here: Stage) -> None:
    first = here.run(str(here.write("f.yaml", here.effect("a"))), "--key", "k")
    second = here.run(str(here.write("g.yaml", here.effect("b"))), "--key", "k")
    made = f"The key 'k' has made {flow_id(first.stdout)} before, a flow f and not g; use a new key for a new flow"
    assert (second.returncode, second.stdout, here.effects) == (2, "", ["a"])
    assert made in second.stderr


def test_a_key_that_has_made_a_flow_is_refused_with_other_inputs_and_for_a_changed_file(here: Stage) -> None:
    inputs = {"version": {"default": "1.0"}}
    file = str(here.write("f.yaml", here.effect("a"), inputs=inputs))
    made = flow_id(here.run(file, "--key", "k", "-i", "version=1.1").stdout)
    assert flow_id(here.run(file, "--key", "k", "-i", "version=1.1").stdout) == made
    other = here.run(file, "--key", "k", "-i", "version=1.2")
    said = f"keptwork: The key 'k' has made {made} before, with other inputs: version; use a new key for a new flow, or"
    assert (other.returncode, other.stdout) == (2, "")
    assert other.stderr == f"{said} see that one: keptwork workstreams show {made}\n"
    here.write("f.yaml", here.effect("a"), here.effect("b"), inputs=inputs)
    changed = here.run(file, "--key", "k", "-i", "version=1.1")
    assert (changed.returncode, changed.stdout, here.effects) == (2, "", ["a"])
    assert "before, by another definition of f; use a new key" in changed.stderr


def test_flow_inside_that_awaits_an_operator_does_not_keep_the_command(stage: Stage) -> None:
    stage.write("inner.yaml", FAILS, abandon_after="1h")
    left = stage.run(str(stage.write("f.yaml", {"id": "inner", "flow": "inner.yaml"})))
    assert (left.returncode, "f is not done yet" in left.stdout) == (1, True)
    again = stage.run("--resume", flow_id(left.stderr))
    assert (again.returncode, "f is not done yet" in again.stdout) == (1, True)


# --- what the tools are


def test_a_configuration_that_cannot_be_is_refused_before_anything_begins(
    here: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(here.write("f.yaml", here.effect("a")))
    assert "nowhere.toml: it cannot be read" in refusal(capsys, here, file, "--config", "nowhere.toml")
    (here.folder / "keptwork.toml").write_text("[tools.t]\ncomand = []")
    assert "tools.t.comand is no key that is known here; did you mean command?" in refusal(capsys, here, file)


def test_a_tool_that_is_not_there_is_told_before_anything_begins(
    here: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    here.write("inner.yaml", {"id": "b", "tool": "rust"})
    file = str(here.write("f.yaml", here.effect("a"), INNER))
    (here.folder / "keptwork.toml").write_text('[tools.ruff]\ncommand = ["ruff"]')
    said = refusal(capsys, here, file)
    assert "step b of inner: there is no tool rust in" in said
    assert "it has: ruff. Add it as [tools.rust]" in said


def test_a_tool_for_the_workers_of_another_queue_need_not_be_there(here: Stage) -> None:
    there = {"id": "b", "tool": "rust", "queue": "machines", "depends_on": ["a"]}
    assert here.run(str(here.write("f.yaml", {"id": "a", "approval": {}}, there))).returncode == 1


def test_the_configuration_that_the_environment_names_wins_over_the_one_beside_the_file(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("flows", "named"):
        (here.folder / folder).mkdir()
        (here.folder / folder / "keptwork.toml").write_text(f'[tools.say]\ncommand = ["echo", "{folder}"]')
    file = str(here.write("flows/f.yaml", {"id": "a", "tool": "say"}))
    assert json.loads(here.run(file, "--json").stdout)["outputs"]["a"]["stdout"] == "flows\n"
    monkeypatch.setenv("KEPTWORK_CONFIG", str(here.folder / "named" / "keptwork.toml"))
    assert json.loads(here.run(file, "--json").stdout)["outputs"]["a"]["stdout"] == "named\n"

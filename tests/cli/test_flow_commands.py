"""The commands for flows as their users meet them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.flow_scene import Scene
from tests.cli.refusals import refused
from tests.service.flow_driver import flow, step
from tests.support.command import run

FILE = """
name: release
inputs: {level: {type: integer, default: 1}}
steps:
  - {id: build, call: "platform:node"}
  - {id: sign, approval: {by: ops, expires: 24h, question: "Ship it?"}, depends_on: [build]}
  - {id: ship, call: "platform:node", depends_on: [sign]}
"""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(f"{tmp_path}/keptwork.db")
    assert scene.keptwork("migrate").returncode == 0
    return scene


def test_templates_are_kept_by_version_and_started_by_name(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "release.yaml"
    file.write_text(FILE)
    first, again = scene.told("templates", "put", str(file)), scene.told("templates", "put", str(file))
    assert (first["version"], again["id"]) == (1, first["id"])
    file.write_text(FILE.replace("default: 1", "default: 2"))
    assert scene.told("templates", "put", str(file))["version"] == 2
    assert [one["version"] for one in scene.told("templates", "list", "--all")["templates"]] == [2, 1]
    assert "input           level: integer, default 2" in scene.keptwork("templates", "show", "release").stdout
    started = scene.told("templates", "start", "release", "-i", "level=7", "--key", "k")
    assert started["inputs"] == {"level": 7}
    assert scene.told("templates", "start", "release", "-i", "level=7", "--key", "k")["id"] == started["id"]
    refused(scene.keptwork("templates", "start", "release", "-i", "level=much"), 2, "the input level")
    refused(scene.keptwork("templates", "start", "nothing"), 1, "No template 'nothing'")


def test_a_workstream_is_shown_with_its_steps_questions_events_and_forks(scene: Scene) -> None:
    asked = {"by": "ops", "expires": "24h", "question": "Ship it?"}
    ref = scene.start(flow(step("build"), step("sign", "build", approval=asked), step("ship", "sign")))
    scene.settle()
    fork = scene.told("workstreams", "fork", ref.public_id, "--from", "sign")
    assert fork["forked_from"] == ref.public_id
    assert [one["state"] for one in fork["steps"]] == ["S_SUCCESS", "S_RUNNING", "S_PENDING"]
    shown = scene.told("workstreams", "show", ref.public_id)
    assert shown["forks"] == [fork["id"]]
    assert shown["questions"][0]["question"] == "Ship it?"
    assert [one["name"] for one in shown["steps"]] == ["build", "sign", "ship"]
    assert "workstream_step_dependencies_met" in {event["type"] for event in shown["events"]}
    text = scene.keptwork("workstreams", "show", ref.public_id).stdout
    for words in (
        "sign asks ops, expires in 24 h: Ship it?",
        "keptwork approvals approve apr_",
        f"fork            {fork['id']}",
        f"keptwork events list --correlation {ref.public_id}",
    ):
        assert words in text
    assert re.search(r"Z +build +dependencies_met +S_RUNNING", text), "which step an event is of"
    listed = scene.told("workstreams", "list", "--state", "s-running")["workstreams"]
    assert [one["id"] for one in listed] == [fork["id"], ref.public_id]


def test_the_events_of_a_step_are_found_by_its_flow_and_its_name(scene: Scene) -> None:
    ref = scene.start(flow(step("build"), step("ship", "build")))
    scene.settle()
    found = scene.told("events", "list", "--oldest-first", "--id", f"{ref.public_id}/build")["events"]
    assert [event["trigger"] for event in found] == ["create", "dependencies_met", "success"]
    refused(scene.keptwork("events", "list", "--id", f"{ref.public_id}/bild"), 1, "No step", "keptwork steps list")
    refused(scene.keptwork("events", "list", "--id", "ws_x/build"), 1, "No flow")


def test_a_run_with_several_gates_needs_the_gate_named_and_takes_the_same_answer_twice(scene: Scene) -> None:
    ref = scene.start(flow(step("a", approval={}), step("b"), step("c", approval={}), kind="run"))
    refused(scene.keptwork("runs", "approve", ref.public_id), 2, "several gates", "--gate: a, c")
    refused(
        scene.keptwork("runs", "approve", ref.public_id, "--gate", "c"), 1, "its step c is PENDING, and asks nothing"
    )
    first = scene.keptwork("runs", "approve", ref.public_id, "--gate", "a", "--by", "ann")
    assert (first.returncode, first.stdout) == (0, "a is approved, by ann; the run is RUNNING.\n")
    before = scene.told("runs", "show", ref.public_id)
    again = scene.keptwork("runs", "approve", ref.public_id, "--gate", "a", "--by", "bob")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert scene.told("runs", "show", ref.public_id)["events"] == before["events"]
    refused(scene.keptwork("runs", "reject", ref.public_id, "--gate", "a"), 1, "was approved by ann before")


def test_flows_are_held_released_cancelled_and_refuse_what_they_cannot(scene: Scene) -> None:
    ref = scene.start(flow(step("a"), step("b"), kind="run"))
    assert scene.told("runs", "hold", ref.public_id)["held_at"] is not None
    assert "it has been held since" in scene.keptwork("why", ref.public_id).stdout
    assert scene.told("runs", "release", ref.public_id)["held_at"] is None
    assert scene.told("runs", "cancel", ref.public_id, "--reason", "enough")["state"] == "CANCELED"
    refused(scene.keptwork("runs", "cancel", ref.public_id), 1, f"run {ref.public_id} is CANCELED: cannot cancel")
    refused(scene.keptwork("workstreams", "show", ref.public_id), 1, "No workstream 'run_")


def test_what_came_of_a_step_is_printed_as_json(scene: Scene) -> None:
    ref = scene.start(flow(step("a")))
    scene.settle()
    assert json.loads(scene.keptwork("steps", "output", f"{ref.public_id}/a").stdout) == {}
    assert scene.told("steps", "show", f"{ref.public_id}/a")["state"] == "S_SUCCESS"
    refused(scene.keptwork("steps", "show", f"{ref.public_id}/z"), 1, f"No step '{ref.public_id}/z'")


def test_a_schedule_of_a_flow_pins_the_file_and_checks_the_inputs(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "release.yaml"
    file.write_text(FILE)
    added = scene.told("schedules", "add", "nightly", "--cron", "0 3 * * *", "--flow", str(file), "-i", "level=3")
    assert added["kind"] == "keptwork.start"
    assert added["payload"]["flow"].startswith("tpl_")
    assert added["payload"]["inputs"] == {"level": 3}
    bad = ("schedules", "add", "other", "--every", "1h", "--flow", "release", "-i", "size=3")
    refused(scene.keptwork(*bad), 2, "has no input size")
    refused(scene.keptwork("schedules", "add", "other", "--every", "1h"), 2, "--kind KIND, or --flow FILE")


def test_an_override_needs_a_state_of_the_lifecycle_and_a_reason(scene: Scene) -> None:
    ref = scene.start(flow(step("a")))
    refused(scene.keptwork("override", ref.public_id, "--to", "DONE", "--reason", "x"), 2, "has no state 'DONE'")
    refused(scene.keptwork("override", ref.public_id, "--to", "S_FAILED", "--reason", " "), 2, "needs a reason")
    dry = scene.keptwork("override", ref.public_id, "--to", "S_SUCCESS", "--reason", "x", "--dry-run")
    assert dry.stdout == f"{ref.public_id} would be overridden: S_PENDING → S_SUCCESS; nothing was changed.\n"
    assert scene.state(ref) == "S_PENDING"
    unknown = run("override", "ws_nothing", "--to", "S_SUCCESS", "--reason", "x", "--db", scene.url)
    refused(unknown, 1, "No entity 'ws_nothing'")


def test_the_doctor_takes_limits_by_state(scene: Scene) -> None:
    scene.start(flow(step("a")))
    assert scene.keptwork("doctor").stdout == "Nothing is wrong.\n"
    stuck = scene.keptwork("doctor", "--stuck-after", "S_PENDING=0s")
    assert stuck.returncode == 1
    assert "needs: keptwork why ws_" in stuck.stdout
    assert scene.keptwork("doctor", "--stuck-after", "0s", "--stuck-after", "s-pending=1h").returncode == 0
    refused(scene.keptwork("doctor", "--stuck-after", "LOST=1h"), 2, "no lifecycle has a state 'LOST'")


def test_a_refusal_says_what_was_typed_and_what_could_be(scene: Scene) -> None:
    """It said: cannot retry_eligible."""
    ref = scene.start(flow(step("a")))
    said = refused(scene.keptwork("workstreams", "retry", ref.public_id), 1, "is S_PENDING: cannot retry")
    assert said.endswith("; allowed: abandon, fork, hold, resume")
    refused(scene.keptwork("workstreams", "cancel", ref.public_id), 2, f"keptwork workstreams abandon {ref.public_id}")


def test_a_workstream_that_failed_is_not_resumed_and_says_what_it_wants(scene: Scene) -> None:
    ref = scene.start(flow(step("a")))
    scene.settle("a")
    done = scene.keptwork("workstreams", "resume", ref.public_id)
    assert done.stdout == (
        f"{ref.public_id} is S_FAILED. What failed is run once more by: keptwork workstreams retry {ref.public_id}\n"
    )

"""What `keptwork run` and others tell of money: the sums of the ledger, also when calls fail or are cut off."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.cli.flow_stage import Stage, flow_id
from tests.support.command import run as keptwork
from tests.support.llm_server import Call, Cut, Hang, LlmServer, Say, Status

PRICES = 'haiku = "m"\nmax_tokens = 500\n[models.prices."m"]\ninput_per_million_usd = 10\noutput_per_million_usd = 100'
SCHEMA = {"type": "object", "required": ["n"]}


def asks(name: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "agent": f"Mend {name}", "tier": "haiku", "depends_on": list(after), "retries": 0, **more}


def shown(stage: Stage, *command: str) -> dict[str, Any]:
    done = keptwork(*command, "--json", "--db", stage.url, cwd=stage.folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_failed_and_lost_calls_cost_what_the_ledger_has_wherever_it_is_shown(stage: Stage) -> None:
    def answer(call: Call) -> Say | Cut:
        return Cut() if "Mend lost" in call.said else Say("no JSON at all")

    with LlmServer(answer) as server:
        (stage.folder / "keptwork.toml").write_text(server.settings("openai", more=PRICES))
        stage.write("inner.yaml", asks("deep"))
        steps = [asks("good"), {"id": "nest", "flow": "inner.yaml"}, asks("lost"), asks("bad", output_schema=SCHEMA)]
        file = str(stage.write("f.yaml", *steps))
        code, told = stage.told(file)
        assert (code, len(server.calls)) == (1, 4)
    total = shown(stage, "cost")["total"]
    assert (total["lost_calls"], total["calls"]) == (1, 4)
    sums = {name: total[name] for name in ("cost_micros", "lost_micros", "lost_calls", "reserved_micros")}
    assert {name: told[name] for name in sums} == sums
    by_step = {step["name"]: (step["cost_micros"], step["lost_calls"]) for step in told["steps"]}
    assert sum(cost for cost, _ in by_step.values()) == total["cost_micros"]
    assert all(cost > 0 for cost, _ in by_step.values())
    assert {name for name, (_, lost) in by_step.items() if lost} == {"lost"}
    story = shown(stage, "workstreams", "show", told["id"])
    assert (story["cost_micros"], story["lost_calls"]) == (total["cost_micros"], 1)
    again = keptwork("run", "--resume", told["id"], "--hold", "--db", stage.url, cwd=stage.folder)
    assert again.returncode == 2
    agents = shown(stage, "agents", "list")["agents"]
    assert sum(one["cost_micros"] for one in agents) == total["cost_micros"]


@pytest.mark.acceptance
def test_second_interrupt_closes_the_calls_in_flight_and_names_what_stays_counted(stage: Stage) -> None:
    with LlmServer([Hang()]) as server:
        (stage.folder / "keptwork.toml").write_text(server.settings(more=PRICES))
        process = stage.start(str(stage.write("f.yaml", asks("ask"))))
        server.wait_for_calls(1)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        while "stopping" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "1 call was cut off and counts with $0.0" in said
    assert "against the budget of the day until " in said
    assert "Go on with: keptwork run" in said
    today = shown(stage, "budgets", "show", "today")
    assert (today["reserved_micros"], today["calls_in_flight"], today["lost_calls"]) == (0, 0, 1)
    assert today["spent_micros"] == today["lost_micros"] == today["calls"][0]["ceiling_micros"]
    assert today["lost_count"].startswith("until ")


@pytest.mark.acceptance
def test_abandoned_flow_tells_which_calls_stay_counted(stage: Stage) -> None:
    with LlmServer([Hang()]) as server:
        (stage.folder / "keptwork.toml").write_text(server.settings(more=PRICES))
        process = stage.start(str(stage.write("f.yaml", asks("ask"))))
        server.wait_for_calls(1)
        (flow,) = shown(stage, "workstreams", "list")["workstreams"]
        done = keptwork("workstreams", "abandon", flow["id"], "--db", stage.url, cwd=stage.folder)
        assert "1 call was cut off and counts with $0.0" in " ".join(done.stdout.split())
        today = shown(stage, "budgets", "show", "today")
        assert (today["reserved_micros"], today["lost_calls"]) == (0, 1)
        process.kill()


def test_resumed_flow_pays_no_finished_agent_again_at_any_depth(stage: Stage) -> None:
    fails = iter([True])
    with LlmServer(lambda call: Status(500) if "Mend two" in call.said and next(fails, False) else Say()) as server:
        (stage.folder / "keptwork.toml").write_text(server.settings(more=PRICES))
        stage.write("deep.yaml", asks("one"), asks("two", "one"), asks("three", "two"))
        stage.write("inner.yaml", {"id": "deeper", "flow": "deep.yaml"})
        file = str(stage.write("f.yaml", {"id": "sub", "flow": "inner.yaml"}))
        code, told = stage.told(file)
        assert (code, len(server.calls)) == (1, 2)
        code, told = stage.told(file, "--resume", told["id"])
        assert (code, told["outcome"], len(server.bills)) == (0, "succeeded", 3)
        assert [call.said.rpartition(" ")[2] for call in server.calls] == ["one", "two", "two", "three"]
    total = shown(stage, "cost")["total"]
    assert (told["cost_micros"], told["lost_calls"]) == (total["cost_micros"], total["lost_calls"])


def test_failed_run_is_resumed_by_a_fork_from_its_failed_step(stage: Stage) -> None:
    mend = {"id": "b", "command": ["python3", "-c", "import os; os.stat('mended')"], "retries": 0}
    steps = [stage.effect("a"), mend, stage.effect("c")]
    for step in steps:
        step.pop("depends_on", None)
    file = str(stage.write("f.yaml", *steps, kind="run"))
    first = stage.run(file)
    failed = flow_id(first.stderr)
    assert (first.returncode, f"Go on with: keptwork run {file} --resume {failed}" in first.stderr) == (1, True)
    (stage.folder / "mended").touch()
    second = stage.run(file, "--resume", failed)
    assert second.returncode == 0, second.stderr
    assert f"{failed} is FAILED, which is final. run_" in " ".join(second.stderr.split())
    assert stage.effects == ["a", "c"]
    third = stage.run(file, "--resume", failed)
    assert (third.returncode, stage.effects) == (0, ["a", "c"]), "it is the same fork, which has succeeded"


def test_abandoned_flow_cannot_be_resumed_and_says_what_can_be_done(stage: Stage) -> None:
    file = str(stage.write("f.yaml", {"id": "a", "command": ["false"]}, abandon_after="0s"))
    _, told = stage.told(file)
    done = stage.run(file, "--resume", told["id"])
    assert done.returncode == 1
    fork = f"To run it anew from a step: keptwork workstreams fork {told['id']} --from STEP"
    assert f"is S_ABANDONED, which is final: nothing of it can be resumed. {fork}" in " ".join(done.stderr.split())

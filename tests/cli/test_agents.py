"""`keptwork agent` and `keptwork agents` as their users run them, against a server that speaks as providers do."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keptwork.agents.budget_rules import cost_micros
from keptwork.settings import read
from tests.support.command import Done, environment, run
from tests.support.llm_server import LlmServer, Say, Status, use

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NO_KEYS: dict[str, Any] = {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": ""}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def ask(here: Path, *arguments: str) -> Done:
    return run("agent", *arguments, "--db", f"sqlite:///{here}/keptwork.db", cwd=here, **NO_KEYS)


def see(here: Path, *arguments: str) -> Done:
    return run(*arguments, "--db", f"sqlite:///{here}/keptwork.db", cwd=here, **NO_KEYS)


def test_without_a_key_the_offline_model_answers_and_says_so(here: Path) -> None:
    done = ask(here, "Summarise the changelog")
    assert (done.returncode, done.stdout) == (0, "[offline model: no provider key is set]\nSummarise the changelog\n")
    assert "offline-haiku (haiku, documentation) · " in done.stderr
    assert "answered offline: no provider key is set" in done.stderr
    (listed,) = json.loads(see(here, "agents", "list", "--json").stdout)["agents"]
    assert (listed["state"], listed["state_history"]) == ("COMPLETED", ["INIT", "DEFINE_AGENT", "PROCESS", "END"])
    record = json.loads(see(here, "agents", "audit", listed["id"], "--json").stdout)
    assert (record["status"], record["job_id"], record["retry_count"]) == ("Completed", listed["id"], 0)
    shown = see(here, "agents", "show", listed["job_id"]).stdout
    assert "documentation: 2 for changelog, summarise" in shown
    assert "success  COMPLETED" in shown


@pytest.mark.parametrize("arguments", [[""], [], ["x", "--tier", "huge"], ["x", "--schema", "nowhere.json"]])
def test_what_cannot_be_asked_is_refused(here: Path, arguments: list[str]) -> None:
    done = ask(here, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_answer_of_a_form_costs_what_the_server_billed(here: Path) -> None:
    with LlmServer([Status(500), Say("three"), Say('{"n": 3}')]) as server:
        (here / "keptwork.toml").write_text(server.settings())
        done = ask(here, "Count the tests", "--schema", "schema.json", "--tier", "sonnet", "--json")
        config = read(here / "keptwork.toml")
    said = json.loads(done.stdout)
    assert (done.returncode, said["result"]["json"], said["retry_count"]) == (0, {"n": 3}, 2)
    billed = [cost_micros("anthropic", bill.model, bill.usage, config) for bill in server.bills]
    assert (said["cost_micros"], len(server.calls)) == (sum(billed), 3)
    assert said["cost_micros"] > 0


def test_one_that_fails_for_good_ends_with_1_and_why(here: Path) -> None:
    with LlmServer(lambda call: Status(500)) as server:
        (here / "keptwork.toml").write_text(server.settings())
        done = ask(here, "Fix it", "--max-retries", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is FAILED: PermanentError: System failure: " in done.stderr


def test_one_without_money_is_left_and_goes_on_when_it_is_resumed(here: Path) -> None:
    with LlmServer([Say("mended")]) as server:
        (here / "keptwork.toml").write_text(server.settings())
        done = ask(here, "Fix it", "--budget", "0.000001")
        assert done.returncode == 1
        told = done.stderr.strip().splitlines()[-1]
        assert told.startswith("Give it more with: keptwork budgets set job_")
        id, job = told.split()[-1], told.split()[7]
        assert see(here, "budgets", "set", job, "1").returncode == 0
        done = ask(here, "--resume", id)
    assert (done.returncode, done.stdout, len(server.calls)) == (0, "mended\n", 1)


@pytest.mark.acceptance
def test_at_a_terminal_the_answer_is_seen_as_it_comes(here: Path) -> None:
    with LlmServer([Say("word by word")]) as server:
        (here / "keptwork.toml").write_text(server.settings())
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "keptwork", "agent", "Fix it", "--db", f"sqlite:///{here}/keptwork.db"]
        done = subprocess.run(
            command, stdout=theirs, stderr=subprocess.PIPE, cwd=here, env=environment(**NO_KEYS), timeout=60, check=True
        )
        seen = os.read(ours, 10_000).decode()
        os.close(ours)
        os.close(theirs)
    assert seen.replace("\r\n", "\n") == "word by word\n"
    assert b"(haiku, bug_fix)" in done.stderr


def test_transcript_shows_prompts_answers_and_tool_calls(here: Path) -> None:
    skill = here / "skills" / "noting"
    skill.mkdir(parents=True)
    front = "---\nname: noting\ndescription: Notes things\nkeywords: [note]\nallowed-tools: [note]\n---\n"
    (skill / "SKILL.md").write_text(f"{front}You note things.\n")
    tool = '[tools.note]\ncommand = ["echo", "noted"]\nargs = ["{text}"]\n'
    tool += '[tools.note.arguments]\nrequired = ["text"]\nproperties = {text = {type = "string"}}\n'
    with LlmServer([use("note", {"text": "a\u001b[31m b"}, "I will note it."), Say("It is noted.")]) as server:
        (here / "keptwork.toml").write_text(f"{server.settings()}\n{tool}")
        done = ask(here, "Note that", "--skill", "noting", "--json")
    assert done.returncode == 0, done.stdout
    id = json.loads(done.stdout)["id"]
    shown = see(here, "agents", "transcript", id)
    spoken = [line.partition(" (")[0] for line in shown.stdout.splitlines()]
    assert spoken == [
        *("system", "  You note things."),
        *("user", "  Note that"),
        *("assistant", "  I will note it.", '  → note {"text": "a\\u001b[31m b"}'),
        *("tool note", "  noted a b"),
        *("assistant", "  It is noted."),
    ]
    told = json.loads(see(here, "agents", "transcript", id, "--json").stdout)
    assert (told["id"], [one["role"] for one in told["transcript"]]) == (
        id,
        ["system", "user", "assistant", "tool", "assistant"],
    )
    assert told["transcript"][2]["uses"][0]["arguments"] == {"text": "a\u001b[31m b"}


def test_transcript_of_an_unknown_agent_job_is_an_error_and_of_an_unsent_one_says_so(here: Path) -> None:
    assert ask(here, "Fix it").returncode == 0
    (listed,) = json.loads(see(here, "agents", "list", "--json").stdout)["agents"]
    unknown = see(here, "agents", "transcript", f"job_{listed['id'].partition('_')[2]}")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "keptwork agents list" in unknown.stderr
    assert see(here, "agents", "transcript", listed["job_id"]).stdout.startswith("system")


def test_show_of_a_long_prompt_tells_its_length_and_where_all_of_it_is(here: Path) -> None:
    text = json.dumps({"name": "f", "inputs": {"big": {}}, "steps": [{"id": "ask", "agent": "Sum up ${inputs.big}"}]})
    (here / "f.yaml").write_text(text)
    assert see(here, "run", "f.yaml", "-i", f"big={'words ' * 3_000}").returncode == 0
    (listed,) = json.loads(see(here, "agents", "list", "--json").stdout)["agents"]
    for command in ("show", "audit"):
        shown = see(here, "agents", command, listed["id"]).stdout
        assert "asked           Sum up words words" in shown
        assert "18,007 bytes, sha256 " in shown
        assert f"all of it: keptwork agents transcript {listed['id']}" in shown

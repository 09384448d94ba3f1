"""`keptwork run` as its users meet it: a flow file carried out by one command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.flow_stage import Stage, Terminal, flow_id, refusal
from tests.support.command import environment
from tests.support.command import run as keptwork
from tests.support.llm_server import LlmServer, Say

EXAMPLE = Path(__file__).parents[2] / "examples" / "release.yaml"


SIGN = {"id": "sign", "approval": {"question": "Ship ${inputs.what}?", "by": "ops"}, "depends_on": ["first"]}


def gated(stage: Stage) -> str:
    steps = [stage.effect("first"), SIGN, stage.effect("second", "sign")]
    return str(stage.write("gated.yaml", *steps, inputs={"what": {"default": "it"}}))


# --- how it ends


def test_a_crew_of_a_flow_works_in_the_process_that_carries_the_flow_out(stage):
    (stage.folder / "shares.py").write_text("def one(share, shares, task): return share\n")
    team = {"id": "team", "crew": {"task": "count", "workers": 2, "call": "shares:one"}}
    code, told = stage.told(str(stage.write("crewed.yaml", team)))
    assert (code, told["outputs"]["team"]["shares"]) == (0, [{"value": 0}, {"value": 1}])


def test_the_example_runs_anywhere_and_says_what_became_of_each_step(stage):
    done = keptwork("run", str(EXAMPLE), "--yes", "--db", stage.url, cwd=stage.folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "✓ release succeeded after" in done.stdout
    for name in ("compile", "checksum", "files", "count", "total", "notes", "sign", "publish"):
        assert f"✓   {name}" in done.stdout
    assert "–   try" in done.stdout
    assert json.loads(keptwork("audit", "verify", "--json", "--db", stage.url).stdout)["clean"]
    listing = done.stdout.partition("log: keptwork ")[2].split()[:4]  # without --db, whose password is not shown
    listed = json.loads(keptwork(*listing, "--limit", "500", "--json", "--db", stage.url).stdout)["events"]
    assert f"{len(listed)} events" in done.stdout
    assert {event["entity"] for event in listed} == {"workstream", "workstream-step", "job", "agent"}


def test_a_failed_step_is_exit_1_with_its_error_and_what_it_wrote_last(here):
    program = "import sys; print('so far so good'); print('no such table: orders', file=sys.stderr); sys.exit(3)"
    file = here.write("f.yaml", here.effect("a"), {"id": "b", "command": ["python3", "-c", program]})
    done = here.run(str(file))
    assert done.returncode == 1
    assert "✗ f failed" in done.stdout
    assert "b ended with exit code 3, not 0" in done.stdout
    assert "b wrote last:\n  no such table: orders" in done.stdout
    assert f"Go on with: keptwork run {file} --resume {flow_id(done.stderr)} --db" in done.stderr


def test_run_marks_the_step_whose_output_was_cut(stage):
    """It had a green tick like any other."""
    flood = {"id": "gen", "command": ["python3", "-c", "print('x' * 3_000_000)"]}
    file = str(
        stage.write("f.yaml", flood, {"id": "use", "command": ["echo", "${gen.exit_code}"], "depends_on": ["gen"]})
    )
    done = stage.run(file)
    assert done.returncode == 0, done.stderr
    assert re.search(r"! gen succeeded in [^,]+, stdout truncated", done.stdout)
    assert re.search(r"!\s+gen\s+succeeded, stdout truncated", done.stdout)
    assert re.search(r"✓\s+use\s+succeeded  ", done.stdout)
    _, told = stage.told(file)
    assert [step["truncated"] for step in told["steps"]] == ["stdout truncated", None]
    narrow = keptwork("run", file, "--db", stage.url, cwd=stage.folder, stdin="", COLUMNS="60")
    assert "! gen: stdout truncated" in narrow.stdout.splitlines()


@pytest.mark.acceptance
def test_picture_marks_the_step_whose_output_was_cut(here):
    flood = {"id": "gen", "command": ["python3", "-c", "print('x' * 3_000_000)"]}
    waits = {"id": "waits", "command": ["sleep", "1"], "depends_on": ["gen"]}
    terminal = Terminal(here, str(here.write("f.yaml", flood, waits)))
    terminal.until("stdout truncated")
    assert "1 of 2 · 1 running" in terminal.written
    assert terminal.ended() == 0


def test_what_failed_can_be_mended_and_gone_on_with_and_nothing_else_is_done_again(stage):
    mend = {"id": "b", "command": ["python3", "-c", "import os; os.stat('mended')"], "depends_on": ["a"]}
    file = str(stage.write("f.yaml", stage.effect("a"), mend, stage.effect("c", "b")))
    first = stage.run(file)
    assert first.returncode == 1
    (stage.folder / "mended").touch()
    second = stage.run(file, "--resume", flow_id(first.stderr))
    assert second.returncode == 0, second.stderr
    assert stage.effects == ["a", "c"]


def test_a_file_that_cannot_be_is_exit_2_with_every_problem_and_its_line_and_leaves_nothing(here, capsys):
    file = here.folder / "bad.yaml"
    file.write_text("name: f\nsteps:\n  - {id: a, comand: [x]}\n  - {id: b, command: [x], timeout: soon}\n")
    done = here.run(str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}:3: steps[1].comand is no key" in done.stderr
    assert f"{file}:4: steps[2].timeout" in done.stderr
    assert not (here.folder / "keptwork.db").exists()
    assert "none.yaml cannot be read: No such file" in refusal(capsys, here, "none.yaml")
    assert "name a flow file" in refusal(capsys, here)
    assert "leave out -i, --hold, --key, --webhook" in refusal(capsys, here, "--resume", "ws_1", "--key", "k")


def test_when_a_flow_has_failed_a_list_that_was_begun_is_unfinished_and_does_not_run(here):
    each = {"id": "each", "command": ["sleep", "0.3"], "for_each": {"items": [1, 2, 3, 4], "limit": 1}}
    steps = [
        each,
        {"id": "slow", "command": ["sleep", "0.1"]},
        {"id": "b", "command": ["false"], "depends_on": ["slow"]},
    ]
    code, told = here.told(str(here.write("f.yaml", *steps)))
    assert (code, [step["outcome"] for step in told["steps"]]) == (1, ["unfinished", "succeeded", "failed"])


def test_a_run_stops_at_the_first_step_that_fails_and_is_over(here):
    steps = [{"id": "a", "command": ["false"], "backoff": "1ms"}, {"id": "b", "command": ["true"]}]
    code, told = here.told(str(here.write("f.yaml", *steps, kind="run")))
    assert (code, told["state"], told["outcome"]) == (1, "FAILED", "failed")
    assert [step["outcome"] for step in told["steps"]] == ["failed", "cancelled"]


# --- what it is given

ECHO = {"id": "a", "command": ["echo", "${inputs.n}", "${inputs.who}"]}
INPUTS = {"n": {"type": "integer", "required": True}, "who": {"default": "ann", "choices": ["ann", "bob"]}}
MORE = {**INPUTS, "share": {"type": "number"}, "some": {"type": "list"}}


def test_inputs_have_types_and_defaults_and_json_is_one_document_beside_what_happens(here):
    done = here.run(str(here.write("f.yaml", ECHO, inputs=INPUTS)), "-i", "n=3", "--json")
    told = json.loads(done.stdout)
    assert (told["inputs"], told["outputs"]["a"]["stdout"]) == ({"n": 3, "who": "ann"}, "3 ann\n")
    assert [(step["name"], step["outcome"], step["attempts"]) for step in told["steps"]] == [("a", "succeeded", 1)]
    assert "a begins: echo" in done.stderr
    assert "a succeeded in" in done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], ["needs the input n", "-i n=VALUE"]),
        (["-i", "n=three"], ["the input n of the flow f"]),
        (["-i", "n=1", "-i", "who=eve"], ["the input who of the flow f"]),
        (["-i", "n=1", "-i", "size=2"], ["has no input size", "it has: n, who, share, some"]),
        (["-i", "n"], ["-i n gives no value", "NAME=VALUE"]),
        (["-i", "=1"], ["-i =1 names no input", "NAME=VALUE"]),
        (["-i", "n=1", "-i", "share=NaN"], ["the input share of the flow f", "of type number; it is 'NaN'"]),
        (["-i", "n=1", "-i", "share=1e999"], ["the input share of the flow f", "of type number; it is '1e999'"]),
        (["-i", "n=1_000"], ["the input n of the flow f", "of type integer; it is '1_000'"]),
        (["-i", "n=1", "-i", "some=[1, NaN]"], ["the input some of the flow f", "JSON can hold; it is [1, nan]"]),
        (["-i", "n=1", "-i", "n=2"], ["the input n is given twice"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_inputs_that_do_not_fit_are_refused(given, words, here, capsys):
    said = refusal(capsys, here, str(here.write("f.yaml", ECHO, inputs=MORE)), *given)
    assert [word for word in words if word not in said] == []


def test_functions_are_found_beside_the_file_whatever_the_working_folder(here):
    inner = here.folder / "deep"
    file = here.write("deep/f.yaml", {"id": "a", "call": "beside:twice", "with": {"n": 4}})
    (inner / "beside.py").write_text("def twice(n):\n    return 2 * n\n")
    code, told = here.told(str(file))
    assert (code, told["outputs"]["a"]) == (0, {"value": 8})


# --- flows inside flows


def test_flows_inside_it_are_read_from_files_seen_from_where_each_lies(here):
    here.write("parts/deep/leaf.yaml", {"id": "x", "command": ["echo", "${inputs.n}"]}, inputs={"n": {}})
    here.write("parts/mid.yaml", {"id": "leaf", "flow": "deep/leaf.yaml", "with": {"n": "${inputs.n}"}},
                inputs={"n": {}})  # fmt: skip
    steps = [{"id": name, "flow": "parts/mid.yaml", "with": {"n": name}} for name in ("one", "two")]
    code, told = here.told(str(here.write("f.yaml", *steps)))
    assert code == 0
    assert told["outputs"]["two"]["steps"]["leaf"]["steps"]["x"]["stdout"] == "two\n"


def test_files_inside_one_another_and_files_that_are_not_there_are_refused_with_their_lines(here, capsys):
    file = here.write("a.yaml", {"id": "b", "flow": "b.yaml"})
    here.write("b.yaml", {"id": "a", "flow": "a.yaml"}, {"id": "c", "flow": "c.yaml"})
    said = refusal(capsys, here, str(file))
    assert "b.yaml:6: steps[1].flow: these files are inside one another: a.yaml → b.yaml → a.yaml" in said
    assert f"b.yaml:10: steps[2].flow: there is no file {here.folder / 'c.yaml'}" in said


# --- approvals


def test_yes_approves_what_is_asked(here):
    code, told = here.told(gated(here), "--yes")
    assert (code, told["outcome"]) == (0, "succeeded")
    assert told["outputs"]["sign"]["approved_by"].startswith("cli")
    assert here.effects == ["first", "second"]


def test_without_anybody_to_ask_it_says_how_to_approve_and_is_gone_on_with_later(stage):
    file = gated(stage)
    done = stage.run(file)
    assert done.returncode == 1
    assert "waits for approval" in done.stdout
    assert "sign asks: Ship it?" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "keptwork approvals approve" in line]
    assert keptwork(*line.split()[1:4], "--db", stage.url).returncode == 0
    again = stage.run(file, "--resume", flow_id(done.stderr))
    assert again.returncode == 0, again.stderr
    assert stage.effects == ["first", "second"]


@pytest.mark.acceptance
@pytest.mark.parametrize(("typed", "code", "effects"), [("y", 0, 2), ("n", 1, 1), ("skip", 1, 1)])
def test_at_a_terminal_it_asks_and_shows_what_an_answer_releases(typed, code, effects, here):
    terminal = Terminal(here, gated(here), "-i", "what=42")
    shown = terminal.until("approve? y/n/skip:")
    assert "? sign: Ship 42? (for ops)" in shown
    assert "then second: command: " in shown
    terminal.type("perhaps\n")
    terminal.until("y approves, n rejects")
    terminal.type(f"{typed}\n")
    assert terminal.ended() == code, terminal.written
    assert len(here.effects) == effects
    assert {"y": "succeeded", "n": "rejected by", "skip": "waits for approval"}[typed] in terminal.written


WAITING = """
async def ask(ctx):
    return (await ctx.wait_for_approval("Really?", by="ops")).by

async def nap(ctx):
    await ctx.sleep("3d")
"""


def test_what_a_function_asks_is_asked_under_the_name_of_its_step(here):
    (here.folder / "waiting.py").write_text(WAITING)
    file = str(here.write("f.yaml", {"id": "check", "call": "waiting:ask"}))
    done = here.run(file)
    assert done.returncode == 1
    assert "check asks: Really?" in done.stdout
    code, told = here.told(file, "--resume", flow_id(done.stderr), "--yes")
    assert code == 0
    assert told["outputs"]["check"]["value"].startswith("cli")


def test_a_flow_that_sleeps_for_days_is_left_and_says_until_when(here):
    (here.folder / "waiting.py").write_text(WAITING)
    done = here.run(str(here.write("f.yaml", {"id": "check", "call": "waiting:nap"})))
    assert done.returncode == 1
    assert "f is not done yet" in done.stdout
    assert "check waits for sleep, until" in done.stdout


# --- being interrupted


@pytest.mark.acceptance
def test_ctrl_c_lets_what_runs_end_and_begins_nothing_more_and_resume_does_the_rest(stage):
    file = str(stage.write("f.yaml", stage.effect("a", seconds=1.0), stage.effect("b", "a")))
    process = stage.start(file)
    stage.wait_for("a")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "stopping: steps that run come to their end" in out
    assert "✓   a" in out
    assert stage.effects == ["a"]
    done = stage.run(file, "--resume", flow_id(said))
    assert done.returncode == 0, done.stderr
    assert stage.effects == ["a", "b"]
    assert re.search("(?m)^· a had succeeded in ", done.stdout)  # and not now
    assert "a succeeded in" not in done.stdout


@pytest.mark.acceptance
def test_a_second_ctrl_c_ends_it_at_once_with_what_it_runs(here):
    file = str(here.write("f.yaml", here.effect("a", seconds=600)))
    process = here.start(file)
    here.wait_for("a")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        if process.stdout is not None:
            for line in process.stdout:
                if "stopping" in line:
                    break
    assert process.wait(60) == 130
    said = process.communicate()[1]
    assert f"Go on with: keptwork run {file} --resume {flow_id(said)} --db" in said


@pytest.mark.acceptance
def test_killed_with_9_in_the_middle_of_steps_it_is_resumed_and_nothing_is_done_twice(stage):
    """None of its steps may be retried: what a dead process held is given one more attempt by whoever resumes it."""
    first = [stage.effect(f"a{n}", seconds=5 * (n > 0)) for n in range(4)]
    file = str(stage.write("f.yaml", *first, stage.effect("b", *(step["id"] for step in first))))
    process = stage.start(file, "--key", "once", "--lease", "2s")
    stage.wait_for("a0", "a1", "a2", "a3")
    process.kill()
    process.communicate()
    (stage.folder / "sink.py").write_text((stage.folder / "sink.py").read_text().replace("time.sleep", "float"))
    code, told = stage.told(file, "--key", "once", "--lease", "2s")
    assert (code, told["outcome"]) == (0, "succeeded"), told
    assert sorted(stage.effects) == ["a0", "a1", "a2", "a3", "b"]
    assert {step["attempts"] for step in told["steps"] if step["name"] in ("a1", "a2", "a3")} == {2}


# --- one flow, and no other


@pytest.mark.acceptance
def test_it_works_on_its_own_flow_and_on_no_other_of_the_database(here):
    held = here.run(str(here.write("other.yaml", here.effect("other"))), "--hold")
    assert (held.returncode, here.effects) == (0, [])
    other = flow_id(held.stderr)
    killed = here.start(str(here.write("killed.yaml", here.effect("killed"), SIGN_LATER)))
    assert killed.wait(60) == 1
    killed.communicate()
    assert here.run(str(here.write("mine.yaml", here.effect("mine")))).returncode == 0
    assert here.effects == ["killed", "mine"]
    assert here.run("--resume", other).returncode == 0
    assert here.effects == ["killed", "mine", "other"]


def test_a_crew_inside_it_is_worked_on_too(here):
    (here.folder / "count.py").write_text("def up(share, shares, task): return share")
    steps = [
        {"id": "team", "crew": {"task": "count", "workers": 3, "call": "count:up"}},
        {"id": "asked", "crew": {"task": "say hello", "workers": 2}},
    ]
    code, told = here.told(str(here.write("f.yaml", *steps)))
    assert (code, told["outputs"]["team"]["shares"]) == (0, [{"value": 0}, {"value": 1}, {"value": 2}])
    assert "say hello" in told["outputs"]["asked"]["shares"][1]["text"]


SIGN_LATER = {"id": "sign", "approval": {}, "depends_on": ["killed"]}


def test_the_same_key_is_the_same_flow(here):
    file = str(here.write("f.yaml", here.effect("a")))
    (_, first), (code, second) = here.told(file, "--key", "k"), here.told(file, "--key", "k")
    assert (code, first["id"], here.effects) == (0, second["id"], ["a"])


# --- what it shows


@pytest.mark.acceptance
def test_on_a_terminal_the_steps_are_a_picture_that_keeps_up(here):
    waits = {"id": "waits", "command": ["true"], "depends_on": ["works"]}
    works = {"id": "works", "command": ["python3", "-uc", "import time; print('half' + ' way'); time.sleep(1)"]}
    terminal = Terminal(here, str(here.write("f.yaml", works, waits)))
    terminal.until("half way")
    assert "0 of 2 · 1 running" in terminal.written
    assert terminal.ended() == 0
    assert "2 of 2 steps" in terminal.written


@pytest.mark.acceptance
def test_without_colour_a_terminal_gets_lines(here):
    terminal = Terminal(here, str(here.write("f.yaml", here.effect("a"))), NO_COLOR="1")
    assert terminal.ended() == 0
    assert "a succeeded in" in terminal.written
    assert "running" not in terminal.written


@pytest.mark.acceptance
def test_a_terminal_that_cannot_redraw_gets_lines(here):
    """It was silent until the end."""
    terminal = Terminal(here, str(here.write("f.yaml", here.effect("a"))), TERM="dumb")
    assert terminal.ended() == 0
    assert "a succeeded in" in terminal.written
    assert "running" not in terminal.written


@pytest.mark.acceptance
def test_the_last_picture_of_a_flow_that_fails_is_up_to_date(here):
    steps = ({"id": "a", "command": ["sleep", "0.3"]}, {"id": "b", "command": ["false"], "depends_on": ["a"]})
    terminal = Terminal(here, str(here.write("f.yaml", *steps)))
    assert terminal.ended() == 1
    assert re.findall("[0-9] of 2 · [0-9] running", terminal.written)[-1] == "1 of 2 · 0 running"


def test_in_a_narrow_terminal_no_word_is_cut_and_commands_stay_in_one_line(here):
    here.write("inner.yaml", {"id": "x", "command": ["true"]})
    steps = [
        {"id": "inside", "flow": "inner.yaml"},
        {"id": "b", "command": ["false"], "depends_on": ["inside"]},
    ]
    file = str(here.write("f.yaml", *steps))
    done = keptwork("run", file, "--db", here.url, cwd=here.folder, stdin="", COLUMNS="60")
    lines = done.stdout.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("✓   ")] == [["✓", "inside", "succeeded"]]
    assert "✗ b: b ended with exit code 1, not 0" in lines
    assert f"log: keptwork events list --correlation {flow_id(done.stdout)} --db {here.url}" in lines
    assert any(line.endswith("▸ inside begins: flow inner") for line in lines)


def test_of_a_thousand_steps_the_summary_shows_what_matters(here):
    (here.folder / "beside.py").write_text("def nothing():\n    return {}\n")
    steps = [{"id": f"s{n}", "call": "beside:nothing"} for n in range(300)]
    done = here.run(str(here.write("f.yaml", *steps)), "--concurrency", "32")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.partition("f succeeded after")[2]
    assert len(summary.splitlines()) < 30
    assert "300 of 300 steps" in summary
    assert "and 290 more that succeeded" in summary


def test_a_flow_without_money_says_so_and_is_gone_on_with_when_it_gets_some(here):
    with LlmServer([Say("It is mended.")]) as server:
        (here.folder / "keptwork.toml").write_text(server.settings())
        file = str(here.write("f.yaml", {"id": "ask", "agent": "Fix it", "tier": "haiku"}, budget_usd=0.0001))
        first = here.run(file)
        assert first.returncode == 1
        assert "ask is held: the budget of ws_" in first.stdout
        assert server.calls == []
        flow = flow_id(first.stdout)
        assert f"keptwork budgets set {flow} USD" in " ".join(first.stdout.split())
        assert keptwork("budgets", "set", flow, "1", "--db", here.url, cwd=here.folder).returncode == 0
        again = here.run(file, "--resume", flow)
    assert (again.returncode, len(server.calls)) == (0, 1)
    assert "✓ f succeeded" in again.stdout


def test_flow_waits_for_what_fits_when_the_calls_in_flight_have_settled(stage):
    prices = 'max_tokens = 80\n[models.prices."m"]\ninput_per_million_usd = 1\noutput_per_million_usd = 100'
    with LlmServer(lambda call: Say("ok")) as server:
        (stage.folder / "keptwork.toml").write_text(server.settings(more=f'haiku = "m"\n{prices}'))
        many = {"id": "ask", "agent": "Mend ${item}", "tier": "haiku", "for_each": {"items": [*range(12)], "limit": 8}}
        code, told = stage.told(str(stage.write("capped.yaml", many, budget_usd=0.025)))
    assert (code, told["outcome"], len(server.calls)) == (0, "succeeded", 12), told
    assert told["cost_usd"] < 0.025


# --- what the display cannot take


def three(stage: Stage) -> str:
    steps = [stage.effect("a", seconds=0.1), stage.effect("b", "a", seconds=0.1), stage.effect("c", "b")]
    return str(stage.write("f.yaml", *steps))


@pytest.mark.acceptance
def test_flow_runs_to_its_end_when_the_reader_of_its_display_leaves(here):
    process = here.start(three(here))
    assert "f is ws_" in process.stdout.readline(), "the first thing to know, should it be killed"
    process.stdout.close()
    assert process.wait(60) == 0
    assert (here.effects, process.stderr.read()) == (["a", "b", "c"], "")


@pytest.mark.acceptance
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["lines", "json"])
def test_flow_runs_to_its_end_when_the_disk_behind_its_display_is_full(here, words):
    with open("/dev/full", "w") as full:
        process = here.start(three(here), *words, stdout=full)
        said = process.communicate(timeout=60)[1]
    assert here.effects == ["a", "b", "c"]
    assert said.count("output can no longer be written: No space left on device. The work continues.") == 1
    assert process.returncode == len(words), "a program must not take a lost document for a result"


@pytest.mark.acceptance
def test_flow_runs_to_its_end_when_stderr_is_full_or_both_streams_are_closed(here):
    with open("/dev/full", "w") as full:
        process = here.start(three(here), "--json", stderr=full)
        told = json.loads(process.communicate(timeout=60)[0])
    assert (process.returncode, told["outcome"], here.effects) == (0, "succeeded", ["a", "b", "c"])
    closed = f"exec {sys.executable} -m keptwork run f.yaml --db {here.url} >&- 2>&-"
    assert subprocess.run(["sh", "-c", closed], cwd=here.folder, env=environment(), timeout=60).returncode == 0
    assert len(here.effects) == 6


@pytest.mark.acceptance
def test_interrupted_flow_ends_although_its_display_is_gone(here):
    process = here.start(str(here.write("f.yaml", here.effect("a", seconds=0.5), here.effect("b", "a"))))
    process.stdout.close()
    here.wait_for("a")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert here.effects == ["a"]
    assert "Go on with: keptwork run" in process.stderr.read()

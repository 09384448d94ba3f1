"""The command line as its users meet it: real processes, their output and their exit codes."""

from __future__ import annotations

import json
import re

import pytest

import keptwork
from tests.lifecycle.expected import EXPECTED
from tests.support.command import Done, run, start

ANSI = re.compile(r"\x1b\[")


def test_list_names_all_nine():
    done = run("lifecycles", "list")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0] for line in done.stdout.splitlines()}
    assert set(EXPECTED) <= rows


def test_list_as_json():
    found = json.loads(run("lifecycles", "list", "--json").stdout)
    assert [entry["name"] for entry in found] == list(EXPECTED)
    assert found[0]["initial"] == "queued"
    assert found[0]["states"] == list(EXPECTED["job"].states)
    assert set(found[0]["final"]) == EXPECTED["job"].final


@pytest.mark.parametrize("name", EXPECTED)
def test_show_as_json_is_the_contracts_object(name):
    done = run("lifecycles", "show", name, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (list(found), found["name"]) == (["name", "states", "moves"], name)
    moves = [(m["trigger"], m["from"], m["to"]) for m in found["moves"]]
    assert sorted(moves[1:]) == sorted(EXPECTED[name].moves)


def test_show_for_people_has_every_trigger_and_marks_final_states():
    text = run("lifecycles", "show", "job").stdout
    lines = text.splitlines()
    assert all(any(line.startswith(f"{trigger} ") for line in lines) for trigger in EXPECTED["job"].all_triggers)
    assert "  succeeded (final)" in lines
    assert "  queued" in lines
    assert not ANSI.search(text)


def test_show_as_mermaid():
    lines = run("lifecycles", "show", "run-step", "--mermaid").stdout.splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    [*] --> PENDING: create" in lines
    assert "    RUNNING --> RUNNING: reclaim" in lines


def test_an_unknown_name_is_one_line_that_lists_the_nine():
    done = run("lifecycles", "show", "nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"keptwork: no lifecycle 'nope'; there are: {', '.join(EXPECTED)}\n"


def test_an_error_is_json_when_json_was_asked_for():
    done = run("lifecycles", "show", "nope", "--json")
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, done.stdout, error["type"]) == (2, "", "BadInput")
    assert error["message"].startswith("no lifecycle 'nope'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lifecicles"], "No such command 'lifecicles'. Did you mean 'lifecycles'?\nTry: keptwork --help"),
        (["lifecycles"], "Missing command.\nTry: keptwork lifecycles --help"),
        (["lifecycles", "show"], "Missing argument 'NAME'.\nTry: keptwork lifecycles show --help"),
        (["lifecycles", "list", "--fast"], "No such option: --fast\nTry: keptwork lifecycles list --help"),
        (["lifecycles", "show", "job", "run"], "Got unexpected extra argument"),
        (["--json", "lifecycles", "list", "--", "--json"], None),
    ],
)
def test_usage_errors_exit_with_2_and_say_where_help_is(arguments, message):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    if message:
        assert done.stderr.startswith(f"keptwork: {message}")


def test_a_usage_error_is_json_too():
    done = run("lifecycles", "show", "--json")
    assert json.loads(done.stderr)["error"]["message"] == "Missing argument 'NAME'."


def test_mermaid_and_json_exclude_each_other():
    assert run("lifecycles", "show", "job", "--json", "--mermaid").returncode == 2


def test_version():
    assert run("--version").stdout == f"keptwork {keptwork.__version__}\n"
    assert json.loads(run("--version", "--json").stdout) == {"version": keptwork.__version__}


def test_help_lists_the_commands():
    bare, asked = run(), run("--help")
    assert bare.returncode == asked.returncode == 0
    assert bare.stdout == asked.stdout
    assert re.search(r"^  lifecycles +Show the declared lifecycles", asked.stdout, re.MULTILINE)


def test_colour_is_left_out_when_it_is_not_wanted():
    coloured = run("lifecycles", "show", "job", FORCE_COLOR="1", TERM="xterm-256color").stdout
    plain = run("lifecycles", "show", "job", FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1").stdout
    assert ANSI.search(coloured)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", plain)


@pytest.mark.acceptance
def test_a_reader_that_leaves_is_no_error_message():
    process = start("lifecycles", "show", "job", "--json")
    assert process.stdout is not None
    process.stdout.close()
    with process:
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.acceptance
def test_a_poor_encoding_does_not_stop_the_output():
    done = run("lifecycles", "show", "crew", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "\\u2264 5" in done.stdout


def test_names_are_completed():
    done = run(_KEPTWORK_COMPLETE="complete_bash", COMP_WORDS="keptwork lifecycles show w", COMP_CWORD="3")
    assert done.stdout.split() == ["worker", "workstream", "workstream-step"]


@pytest.mark.acceptance
@pytest.mark.parametrize("driver", ["apsw", "asyncpg", "rich.table", "pydantic"])
def test_help_needs_neither_a_driver_nor_a_drawing_library(driver):
    code = f"import sys, keptwork.cli.main; sys.exit({driver!r} in sys.modules)"
    assert run(python=("-c", code)).returncode == 0


# What becomes of an error inside a command: a stand-in for the command raises it.
STAND_IN = """
import sys
from keptwork.cli import main
from keptwork.cli.main import Entry
def act(*, as_json: main.screen.Json = False) -> {returns}:
    '''Act.'''
    {body}
sys.modules["stand_in"] = type(sys)("stand_in")
sys.modules["stand_in"].act = act
main.COMMANDS["act"] = Entry("stand_in:act", "Act.")
main.run(sys.argv[1:])
"""


def act(body: str, *arguments: str, returns: str = "None", debug: str = "") -> Done:
    python = ("-c", STAND_IN.format(body=body, returns=returns))
    return run("act", *arguments, python=python, KEPTWORK_DEBUG=debug)


@pytest.mark.acceptance
def test_an_unexpected_error_is_one_line_and_a_traceback_only_on_request():
    plain, debug = act("1 / 0"), act("1 / 0", debug="1")
    line = "keptwork: unexpected ZeroDivisionError: division by zero; KEPTWORK_DEBUG=1 shows where\n"
    assert (plain.returncode, plain.stderr) == (1, line)
    assert debug.returncode == 1
    assert debug.stderr.startswith("Traceback")
    assert debug.stderr.endswith(line)


@pytest.mark.acceptance
def test_an_error_of_ours_keeps_its_exit_code():
    body = "from keptwork import errors; raise errors.{}"
    gone = act(body.format("NotFound(what='job', id='job_1', listing='keptwork jobs list')"))
    assert (gone.returncode, gone.stderr) == (1, "keptwork: No job job_1; list them with: keptwork jobs list\n")
    assert act(body.format("BadInput(what='no')")).returncode == 2
    failed = act(body.format("StoreError(url='sqlite:///x', detail='y')"), "--json")
    assert json.loads(failed.stderr)["error"] == {
        "type": "StoreError",
        "message": "The database sqlite:///x failed: y",
    }


@pytest.mark.acceptance
def test_an_interrupt_exits_with_130_and_says_nothing():
    done = act("raise KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.acceptance
def test_a_command_may_answer_with_its_exit_code():
    assert act("return 3", returns="int").returncode == 3
    assert act("import typer; raise typer.Exit(4)").returncode == 4

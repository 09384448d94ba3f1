"""What references find in the output of a program: no newline at its end, and an error where it was cut."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork import Keptwork
from keptwork.errors import BadFlow
from keptwork.flows import forks
from keptwork.flows.expression import as_text, filled, raw
from keptwork.flows.plan import looking
from keptwork.flows.report import cut_of
from keptwork.flows.transaction import Actor, content
from keptwork.flows.validation import load
from tests.flow.stage import Ran, flow_of, ran, returning, worked

pytestmark = pytest.mark.acceptance

LIMIT = 1 << 10
WORDS = st.text("a\n\r ", max_size=6)


@pytest.fixture
async def app(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keptwork]:
    """Has a tool of which 1 KiB of output is kept."""
    config = f"[tools.small]\ncommand = {json.dumps([sys.executable, '-c'])}\noutput = '1KiB'\n"
    (tmp_path / "keptwork.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    app = Keptwork(database_url)
    yield app
    await app.close()


def prints(id: str, text: str, *after: str, stream: str = "stdout", **more: Any) -> dict[str, Any]:
    """Return a step whose program prints exactly this text."""
    code = f"import sys; sys.{stream}.write({text!r})"
    return {"id": id, "command": [sys.executable, "-c", code], "depends_on": list(after), **more}


def floods(id: str, stream: str = "stdout", **more: Any) -> dict[str, Any]:
    """Return a step whose program prints a JSON list that is cut, and a few words on the other stream."""
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    code = f"import json, sys; json.dump(list(range(2000)), sys.{stream}); sys.{other}.write('[1]')"
    return {"id": id, "tool": "small", "args": [code], **more}


async def output(done: Ran, name: str) -> Any:
    (found,) = await done.store.outputs(done.ref.id, [name])
    return await content(done.store, 1, found)


# --- the newline at the end


async def test_output_that_ends_in_a_newline_compares_equal_to_its_text(app: Keptwork) -> None:
    done = await ran(app, prints("a", "go\n"), {**returning("b", "a"), "when": "${a.stdout} == 'go'"})
    assert done.states["b"] == "S_SUCCESS"


async def test_output_is_filled_in_without_its_newline_and_stored_with_it(app: Keptwork) -> None:
    done = await ran(
        app,
        prints("a", "12\n"),
        returning("b", "a", text="Pay ${a.stdout}?", alone="${a.stdout}", raw="${a.stdout.raw}", json="${a.json}"),
    )
    assert done.outputs["b"] == {"text": "Pay 12?", "alone": "12", "raw": "12\n", "json": 12}
    assert (done.outputs["a"]["stdout"], done.outputs["a"]["json"]) == ("12\n", 12)


async def test_stderr_is_filled_in_without_its_newline_as_well(app: Keptwork) -> None:
    done = await ran(
        app, prints("a", "oh\n\n", stream="stderr"), returning("b", "a", x="${a.stderr}", y="${a.stderr.raw}")
    )
    assert done.outputs["b"] == {"x": "oh\n", "y": "oh\n\n"}


@pytest.mark.acceptance
async def test_program_reads_the_output_of_another_to_the_last_byte(app: Keptwork) -> None:
    code = "import sys; sys.stdout.write(repr(sys.stdin.read()))"
    reads = {"id": "b", "command": [sys.executable, "-c", code], "stdin": "${a.stdout}", "depends_on": ["a"]}
    done = await ran(app, prints("a", "x\n"), reads, {**reads, "id": "c", "stdin": "> ${a.stdout}"})
    assert [done.outputs[name]["stdout"] for name in "bc"] == [repr("x\n"), repr("> x\n")]


@pytest.mark.acceptance
async def test_argument_and_variable_of_a_program_have_no_newline(app: Keptwork) -> None:
    code = "import os, sys; print(repr(sys.argv[1] + os.environ['X']))"
    does = {"id": "b", "command": [sys.executable, "-c", code, "${a.stdout}"], "env": {"X": "${a.stdout}"}}
    done = await ran(app, prints("a", "x\n"), {**does, "depends_on": ["a"]})
    assert done.outputs["b"]["stdout"] == "'xx'\n"


async def test_output_inside_a_list_and_inside_a_flow_is_read_like_any_other(app: Keptwork) -> None:
    inner = flow_of(prints("x", "in\n"))
    each = {**prints("a", "one\n"), "for_each": {"items": [1]}}
    again = {**returning("c", "a", x="${item.stdout}"), "for_each": {"items": "${a.items}"}}
    done = await ran(
        app,
        each,
        {"id": "sub", "flow": "inner"},
        again,
        returning("b", "a", "sub", x="${a.items[0].stdout}", y="${sub.steps.x.stdout}", z="${sub.steps.x.stdout.raw}"),
        library={"inner": inner},
    )
    assert done.outputs["b"] == {"x": "one", "y": "in", "z": "in\n"}
    assert done.outputs["c"]["items"] == [{"x": "one"}]


async def test_text_of_a_function_keeps_its_newline(app: Keptwork) -> None:
    done = await ran(app, returning("a", stdout="go\n"), returning("b", "a", x="${a.stdout}"))
    assert done.outputs["b"] == {"x": "go\n"}


@given(WORDS, WORDS, WORDS)
def test_one_newline_is_lost_wherever_output_is_filled_in_and_none_of_raw(before: str, text: str, behind: str) -> None:
    one = {"stdout": text, "stderr": text, "exit_code": 0, "json": None, "seconds": 0.1, "truncated": False}
    look = looking({"a": one})
    bare = text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text
    for stream in ("stdout", "stderr"):
        assert filled(f"${{a.{stream}}}", look) == bare
        assert filled(f"{before}${{a.{stream}}}{behind}", look) == before + bare + behind
        assert filled(f"{before}${{a.{stream}.raw}}", look) == before + text
        assert filled(f"{before}${{a.{stream}}}", raw(look)) == before + text
    assert as_text(one["stdout"]) == text


# --- what is no JSON


async def test_json_of_output_that_is_not_json_is_an_error_and_a_printed_null_is_not(app: Keptwork) -> None:
    done = await ran(
        app,
        prints("a", "null\n"),
        prints("b", "words\n"),
        {**returning("c", "a"), "when": "${a.json} == null"},
        {**returning("d", "b", "c"), "when": "${b.json} == null"},
    )
    assert (done.states["c"], done.states["d"]) == ("S_SUCCESS", "S_FAILED")
    assert done.steps["d"]["error"] == "there is no value for ${b.json}: stdout is not JSON"


# --- output that was cut


async def test_reference_to_the_stream_that_was_cut_is_an_error(app: Keptwork) -> None:
    done = await ran(app, floods("a"), returning("b", "a", x="${a.stdout}"))
    assert done.states == {"a": "S_SUCCESS", "b": "S_FAILED"}
    assert "there is no value for ${a.stdout}: stdout was truncated" in done.steps["b"]["error"]
    assert "`truncated: allow`" in done.steps["b"]["error"]


async def test_reference_to_the_other_stream_and_to_the_exit_code_is_none(app: Keptwork) -> None:
    done = await ran(
        app, floods("a", "stderr"), returning("b", "a", x="${a.stdout}", y="${a.exit_code}", z="${a.json[0]}")
    )
    assert done.outputs["b"] == {"x": "[1]", "y": 0, "z": 1}
    cut = {name: (await output(done, "a"))[name] for name in ("truncated", "stdout_truncated", "stderr_truncated")}
    assert cut == {"truncated": True, "stdout_truncated": False, "stderr_truncated": True}


@pytest.mark.parametrize("wanted", ["${a.json}", "${a.json[1999]}", "${a.stdout.raw}"])
async def test_json_and_raw_text_of_a_stream_that_was_cut_are_errors_that_say_so(app: Keptwork, wanted: str) -> None:
    done = await ran(app, floods("a"), {**returning("b", "a"), "when": f"{wanted} != 1"})
    assert done.steps["b"]["error"].startswith(f"there is no value for {wanted}: stdout was truncated")


async def test_step_that_allows_truncated_output_gets_what_is_left(app: Keptwork) -> None:
    said = {**returning("b", "a", x="${a.stdout}", y="${a.json}"), "truncated": "allow"}
    done = await ran(app, floods("a"), {**said, "when": "'left out here' in ${a.stdout}"})
    assert done.states["b"] == "S_SUCCESS"
    assert (await output(done, "b")) == {"x": (await output(done, "a"))["stdout"], "y": None}


@pytest.mark.acceptance
async def test_program_does_not_read_output_that_was_cut_unless_it_allows_it(app: Keptwork) -> None:
    reads = {"id": "b", "command": ["wc", "-c"], "stdin": "${a.stdout}", "depends_on": ["a"]}
    done = await ran(app, floods("a"), reads, {**reads, "id": "c", "truncated": "allow"})
    assert done.states["b"] == "S_FAILED"
    done = await ran(app, floods("a"), {**reads, "truncated": "allow"})
    assert int(done.outputs["b"]["stdout"]) == len((await output(done, "a"))["stdout"].encode())


async def test_step_whose_output_was_cut_says_so_as_does_what_it_is_inside(app: Keptwork) -> None:
    inner = flow_of(floods("x"), returning("y", "x"))
    done = await ran(
        app,
        floods("a"),
        {**floods("b", "stderr"), "for_each": {"items": [1]}},
        {"id": "sub", "flow": "inner"},
        prints("c", "fine"),
        library={"inner": inner},
    )
    reasons = {name: step["reason"] for name, step in done.steps.items()}
    assert reasons == {
        "a": "truncated: stdout",
        "b": "truncated: stderr of [0]",
        "b[0]": "truncated: stderr",
        "sub": "truncated: stdout of x",
        "c": None,
    }


async def test_fork_that_keeps_a_step_whose_output_was_cut_still_says_so(app: Keptwork) -> None:
    done = await ran(app, floods("a"), returning("b", "a"))
    forked = await worked(app, await forks.fork(done.store, done.ref, "b", actor=Actor("ann")))
    assert forked.steps["a"]["reason"] == f"truncated: stdout; kept from {done.ref.public_id}"
    assert cut_of(forked.steps["a"]) == "stdout truncated"


# --- checked before anything runs


def test_way_into_the_text_of_a_program_is_refused_with_what_to_write() -> None:
    text = "name: f\nsteps:\n- {id: a, command: [echo]}\n- {id: b, command: [echo, '${a.stdout.n}'], depends_on: [a]}\n"
    with pytest.raises(BadFlow, match=r"b uses \$\{a\.stdout\.n\}, and stdout is text; write \$\{a\.stdout\}"):
        load(text, "f.yaml")
    load(text.replace("stdout.n", "stdout.raw"), "f.yaml")
    load(text.replace("stdout.n", "stdout_truncated"), "f.yaml")

"""The page about references, held against real flows: an approval shows what every reference gives at that moment."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.errors import ApprovalChanged
from keptwork.flows.definition import KINDS, OF_EACH, VALUES, Flow
from tests.flow.stage import flow_of, ran, returning, worked
from tests.worker.agent_scene import Scripted
from tools.flow_references import (
    ALLOWED,
    CUT,
    CUT_OUTPUT,
    EACH,
    FAILED,
    FINISHED,
    NOT_RUN,
    PROGRAM,
    SAMPLES,
    SITUATIONS,
    SKIPPED,
    Row,
    page,
    refused,
    rows,
    shown,
)

pytestmark = pytest.mark.acceptance

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OF_PROGRAMS = ("tool", "flow", EACH)
LEFT_OUT = "bytes are left out here"


def three() -> int:
    return 3


def one(share: int, shares: int, task: str) -> int:
    return share


@pytest.fixture
async def app(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keptwork]:
    """Has a model that counts to three, and a tool of which 1 KiB of output is kept."""
    config = f"[tools.small]\ncommand = {json.dumps([sys.executable, '-c'])}\noutput = '1KiB'\n"
    (tmp_path / "keptwork.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    app = Keptwork(database_url)
    app.provider = Scripted(SAMPLES["agent"]["text"])
    yield app
    await app.close()


# --- steps of every kind, as the samples of the page have them


def program(situation: str) -> str:
    """Return a program that prints what the sample has, or floods one of its streams."""
    flood = json.dumps(list(range(2_000)))
    streams = ("stdout" if situation == ALLOWED else situation.removesuffix(" truncated"),)
    printed = {name: flood if name in streams else PROGRAM[name] for name in ("stdout", "stderr")}
    return "import sys\n" + "".join(f"sys.{name}.write({text!r})\n" for name, text in printed.items())


def inner(situation: str) -> Flow:
    skipped = {**returning("skipped"), "when": "1 == 2"}
    return flow_of({"id": "b", "tool": "small", "args": [program(situation)]}, skipped)


def does(kind: str, situation: str) -> dict[str, Any]:
    code = program(situation)
    found: dict[str, dict[str, Any]] = {
        "tool": {"tool": "small", "args": [code]},
        "command": {"command": [sys.executable, "-c", code]},
        "call": {"call": f"{__name__}:three"},
        "agent": {"agent": "Count", "tier": "haiku", "skill": "testing", "output_schema": SCHEMA},
        "approval": {"approval": {"question": "Go on?"}},
        "crew": {"crew": {"task": "count", "call": f"{__name__}:one"}},
        "flow": {"flow": "inner"},
        EACH: {"tool": "small", "args": [code], "for_each": {"items": [1, 2]}, "when": "${item} == 1"},
    }
    return found[kind]


def named(kind: str) -> str:
    return f"a_{kind}"


def asking(kind: str, situation: str) -> dict[str, Any]:
    """Return a step that an approval releases, with every reference of the page to a kind of step."""
    asked = {row.reference: _of(kind, row.reference) for row in rows() if row.kind == kind}
    allows = {"truncated": "allow"} if situation == ALLOWED else {}
    return {**returning(f"pay_{kind}", "sign", named(kind), **asked), **allows}


def _of(kind: str, text: str) -> str:
    return text.replace("${a.", f"${{{named(kind)}.")


# --- what an approval shows, as the page has it


async def told(app: Keptwork) -> dict[str, dict[str, Any]]:
    """Return what the approval `sign` shows of each step that it releases."""
    (sign,) = [question for question in await app.approvals() if question.step == "sign"]
    return {action["step"]: action["with"] for action in json.loads(sign.details or "")}


def cell_of(kind: str, reference: str, found: Any) -> str:
    """Return what an approval shows in place of a reference as the page has it."""
    own = _of(kind, reference)
    if found == f"[not known yet: {own}]":
        return "error: a has not run yet"
    if isinstance(found, str) and found.startswith(f"[no value: {own}"):
        return refused(f"{own}{found.removeprefix(f'[no value: {own}')[:-1]}".replace(named(kind), "a"))
    return shown(alike(kind, reference.removesuffix("}").rpartition(".")[2], found))


def alike(kind: str, name: str, found: Any) -> Any:
    """Return a value with what differs from flow to flow as the sample has it."""
    if isinstance(found, dict):
        return {key: alike(kind, key, part) for key, part in found.items()}
    if isinstance(found, list):
        return [alike(kind, name, part) for part in found]
    if name == "seconds":
        return PROGRAM["seconds"]
    if name == "id":
        return SAMPLES[kind]["id"]
    return cut(found) if isinstance(found, str) and LEFT_OUT in found else found


def cut(text: str) -> str:
    return str(CUT_OUTPUT["stdout"]["stdout"] if text.startswith("[0, 1") else CUT_OUTPUT["stderr"]["stderr"])


def expected(kinds: tuple[str, ...], situation: str) -> Iterator[tuple[Row, str]]:
    place = SITUATIONS.index(situation)
    yield from ((row, row.cells[place]) for row in rows() if row.kind in kinds)


async def insist(app: Keptwork, kinds: tuple[str, ...], situation: str) -> None:
    found = await told(app)
    for row, cell in expected(kinds, situation):
        shows = found[f"pay_{row.kind}"][row.reference]
        assert (row.kind, row.reference, cell_of(row.kind, row.reference, shows)) == (row.kind, row.reference, cell)


ALL = (*KINDS, EACH)


@pytest.mark.parametrize("situation", [FINISHED, SKIPPED])
async def test_every_reference_gives_what_the_page_says_of_a_step_that_finished_or_was_skipped(
    app: Keptwork, situation: str
) -> None:
    never = {"when": "1 == 2"} if situation == SKIPPED else {}
    steps = [{**does(kind, situation), "id": named(kind), **never} for kind in ALL]
    sign = {"id": "sign", "approval": {"question": "Pay?"}, "depends_on": [named(kind) for kind in ALL]}
    asks = [asking(kind, situation) for kind in ALL]
    done = await ran(app, *steps, sign, *asks, library={"inner": inner(situation)})
    if situation == FINISHED:
        (gate,) = await app.approvals()
        await app.approve(gate.public_id, by="ann")
        await worked(app, done.ref)
    await insist(app, ALL, situation)


@pytest.mark.parametrize("situation", [*CUT.values(), ALLOWED])
async def test_every_reference_gives_what_the_page_says_of_output_that_was_truncated(
    app: Keptwork, situation: str
) -> None:
    steps = [{**does(kind, situation), "id": named(kind)} for kind in OF_PROGRAMS]
    sign = {"id": "sign", "approval": {"question": "Pay?"}, "depends_on": [named(kind) for kind in OF_PROGRAMS]}
    asks = [asking(kind, situation) for kind in OF_PROGRAMS]
    await ran(app, *steps, sign, *asks, library={"inner": inner(situation)})
    await insist(app, OF_PROGRAMS, situation)


async def test_every_reference_gives_what_the_page_says_of_a_step_that_has_not_run(app: Keptwork) -> None:
    hold = {"id": "hold", "approval": {"question": "Begin?"}}
    steps = [{**does(kind, NOT_RUN), "id": named(kind), "depends_on": ["hold"]} for kind in ALL]
    sign = {"id": "sign", "approval": {"question": "Pay?"}}
    asks = [asking(kind, NOT_RUN) for kind in ALL]
    await ran(app, hold, sign, *steps, *asks, library={"inner": inner(NOT_RUN)})
    await insist(app, ALL, NOT_RUN)


@pytest.mark.parametrize("kind", ALL)
async def test_every_reference_gives_what_the_page_says_of_a_step_that_failed(app: Keptwork, kind: str) -> None:
    hold, sign = ({"id": name, "approval": {"question": "Go on?"}} for name in ("hold", "sign"))
    fails = "${inputs.none} == ${item}" if kind == EACH else "${inputs.none} == 1"
    step = {**does(kind, FAILED), "id": named(kind), "depends_on": ["hold"], "when": fails}
    library = {"inner": inner(FAILED)}
    done = await ran(app, hold, sign, step, asking(kind, FAILED), inputs={"none": {}}, library=library)
    gates = {question.step: question for question in await app.approvals()}
    await app.approve(gates["hold"].public_id, by="ann")
    done = await worked(app, done.ref)
    assert done.states[named(kind)] == "S_FAILED"
    with pytest.raises(ApprovalChanged):
        await app.approve(gates["sign"].public_id, by="ann")
    await insist(app, (kind,), FAILED)


def test_page_has_every_value_of_every_kind_of_step() -> None:
    listed = {(row.kind, row.reference) for row in rows()}
    values = {**VALUES, EACH: OF_EACH, "call": frozenset({"value"})}
    assert set(values) == set(ALL) == set(SAMPLES)
    for kind, names in values.items():
        assert set(SAMPLES[kind]) == names
        assert {(kind, f"${{a.{name}}}") for name in names} <= listed
    assert all(len(row.cells) == len(SITUATIONS) for row in rows())
    text = page()
    assert all(f"`{reference}`" in text for _, reference in listed)


def test_tools_and_commands_which_share_a_table_give_the_same() -> None:
    tool, command = ([row[1:] for row in rows() if row.kind == kind] for kind in ("tool", "command"))
    assert tool == command

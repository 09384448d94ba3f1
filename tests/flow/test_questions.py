"""What an approval shows, and what an answer to it releases: known values by value, and the others marked."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.errors import ApprovalChanged
from keptwork.store.contract.waits_approvals import Approval
from tests.flow.stage import Ran, given, ran, returning, worked

pytestmark = pytest.mark.acceptance

TEXT = "paid ${v.stdout} approved by ${sign.approved_by}"


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    app = Keptwork(database_url)
    yield app
    await app.close()


def price(text: str = "12\n") -> dict[str, Any]:
    return {"id": "v", "command": [sys.executable, "-c", f"import sys; sys.stdout.write({text!r})"]}


def sign(*after: str, question: str = "Pay ${v.stdout}?", **more: Any) -> dict[str, Any]:
    return {"id": "sign", "approval": {"question": question}, "depends_on": list(after), **more}


async def asked(app: Keptwork) -> tuple[Approval, Any]:
    """Return the open question, and what its answer would release."""
    (question,) = await app.approvals()
    return question, json.loads(question.details or "null")


async def approved(app: Keptwork, done: Ran, by: str = "ann") -> Ran:
    (question,) = await app.approvals()
    await app.approve(question.public_id, by=by)
    return await worked(app, done.ref)


async def test_approval_shows_known_values_and_marks_what_is_not_known_yet(app: Keptwork) -> None:
    done = await ran(
        app, price(), sign("v"), returning("pay", "sign", text=TEXT, list=["${sign.comment}", "${v.exit_code}"])
    )
    question, action = await asked(app)
    assert question.question == "Pay 12?"
    shown = {
        "text": "paid 12 approved by [not known yet: ${sign.approved_by}]",
        "list": ["[not known yet: ${sign.comment}]", 0],
    }
    assert action == [{"step": "pay", "call": f"{given.__module__}:given", "with": shown}]
    done = await approved(app, done)
    assert done.outputs["pay"]["text"] == "paid 12 approved by ann"


async def test_digest_of_an_approval_covers_the_values_that_are_shown(app: Keptwork) -> None:
    digests = []
    for text in ("12\n", "13\n"):
        done = await ran(app, price(text), sign("v"), returning("pay", "sign", text=TEXT))
        digests.append((await asked(app))[0].digest)
        await approved(app, done)
    assert digests[0] != digests[1]


async def test_answer_to_a_value_that_has_changed_since_is_asked_for_again(app: Keptwork) -> None:
    done = await ran(app, price(), sign("v"), returning("pay", "sign", text=TEXT))
    first, _ = await asked(app)
    changed = json.dumps({**done.outputs["v"], "stdout": "1200\n"})
    await done.store.atomically(lambda tx: tx.execute(f"UPDATE steps SET output = '{changed}' WHERE name = 'v'"))
    with pytest.raises(ApprovalChanged):
        await app.approve(first.public_id, by="ann")
    _, (action,) = await asked(app)
    assert action["with"]["text"] == "paid 1200 approved by [not known yet: ${sign.approved_by}]"


async def test_value_of_a_step_that_still_waits_is_marked_and_its_arrival_asks_again(app: Keptwork) -> None:
    pay = returning("pay", "sign", "late", text="${v.exit_code} and ${late.n}")
    done = await ran(app, price(), sign("v"), sign(question="Wait?", id="hold"), returning("late", "hold", n=7), pay)
    questions = {one.step: one for one in await app.approvals()}
    (action,) = json.loads(questions["sign"].details or "")
    assert action["with"] == {"text": "0 and [not known yet: ${late.n}]"}
    await app.approve(questions["hold"].public_id, by="ann")
    done = await worked(app, done.ref)
    with pytest.raises(ApprovalChanged):
        await app.approve(questions["sign"].public_id, by="ann")
    _, (action,) = await asked(app)
    assert action["with"] == {"text": "0 and 7"}
    assert (await approved(app, done)).states["pay"] == "S_SUCCESS"


async def test_value_that_will_never_be_there_is_marked_with_the_reason(app: Keptwork) -> None:
    skipped = {**returning("v", n=1), "when": "1 == 2"}
    await ran(app, skipped, sign("v", question="Go on?"), returning("pay", "sign", n="${v.n}"))
    _, (action,) = await asked(app)
    assert action["with"] == {"n": "[no value: ${v.n}: v did not run: it was skipped]"}


async def test_item_of_a_list_that_runs_later_is_marked(app: Keptwork) -> None:
    each = {**returning("pay", "sign", n="${item}"), "for_each": {"items": "${v.list}"}}
    await ran(app, returning("v", list=[1, 2]), sign("v", question="Go on?"), each)
    _, (action,) = await asked(app)
    assert (action["with"], action["for_each"]["items"]) == ({"n": "[not known yet: ${item}]"}, [1, 2])


async def test_stdin_is_shown_as_the_program_reads_it(app: Keptwork) -> None:
    reads = {"id": "pay", "command": ["cat"], "stdin": "${v.stdout}", "depends_on": ["sign"]}
    await ran(app, price(), sign("v"), reads)
    _, (action,) = await asked(app)
    assert action["stdin"] == "12\n"


async def test_condition_can_use_the_answer_that_released_its_step(app: Keptwork) -> None:
    """The answer was looked up before it was given, and not again."""
    pay = {**returning("pay", "sign"), "when": "${sign.approved_by} == 'ann'"}
    done = await ran(app, sign(question="Go on?"), pay)
    assert (await approved(app, done)).states == {"sign": "S_SUCCESS", "pay": "S_SUCCESS"}


@pytest.mark.parametrize(("kind", "failed"), [("workstream", "S_FAILED"), ("run", "FAILED")])
async def test_question_about_an_absent_value_fails_its_step(app: Keptwork, kind: str, failed: str) -> None:
    question = {"id": "sign", "approval": {"question": "Ship ${inputs.what}?"}}
    done = await ran(app, question, {"id": "b", "command": ["true"]}, kind=kind, inputs={"what": {}})
    assert (done.flow["state"], done.states["sign"]) == (failed, failed)
    assert "the input what was not given" in done.steps["sign"]["error"]
    assert await app.approvals() == []

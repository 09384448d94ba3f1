"""`keptwork webhooks` as its users run it."""

from __future__ import annotations

import asyncio
import json

from keptwork.core.lifecycles import RUN
from keptwork.store import open_store
from keptwork.store.contract.outbox import NewDelivery
from keptwork.webhooks.outbox import name_of
from tests.cli.queue_scene import answer, said
from tests.support.command import run

URL = "https://example.com/hook?token=abc"


async def told(url: str) -> list[str]:
    """A message that is given up, and one that waits."""
    store = await open_store(url)
    names = []
    for error in ("the answer was 404", None):
        flow = await store.create(RUN)
        body = json.dumps({"flow": {"state": "FAILED"}})
        await store.put_delivery(NewDelivery(1, "run", flow, 2, "run.failed", URL, body))
        if error:
            (taken,) = await store.take_deliveries(1, 1)
            await store.settle_delivery(taken, "given_up", error=error)
        names.append(name_of("run", flow, 2))
    await store.close()
    return names


def test_messages_are_listed_shown_and_sent_again(sqlite_url: str) -> None:
    over, waiting = asyncio.run(told(sqlite_url))
    listed = answer(sqlite_url, "webhooks", "list")["webhooks"]
    assert [(one["id"], one["state"], one["attempts"], one["last_error"]) for one in listed] == [
        (waiting, "pending", 0, None),
        (over, "given_up", 1, "the answer was 404"),
    ]
    assert [one["id"] for one in answer(sqlite_url, "webhooks", "list", "--state", "given_up")["webhooks"]] == [over]
    flow = waiting.rpartition(":")[0]
    assert [one["id"] for one in answer(sqlite_url, "webhooks", "list", "--flow", flow)["webhooks"]] == [waiting]
    for columns in (80, 200):
        drawn = said(sqlite_url, "webhooks", "list", columns=columns)
        assert "the answer was 404" in drawn
        assert "token" not in drawn
    shown = said(sqlite_url, "webhooks", "show", over)
    assert all(
        words in shown
        for words in (over, "https://example.com/hook?***", "KEPTWORK_WEBHOOK_SECRET", "given up after 1 attempt")
    )
    assert answer(sqlite_url, "webhooks", "show", over)["body"] == {"flow": {"state": "FAILED"}}

    again = said(sqlite_url, "webhooks", "retry", over)
    assert again == f"{over} is sent again by the next worker that looks; it was given up.\n"
    assert [one["state"] for one in answer(sqlite_url, "webhooks", "list")["webhooks"]] == ["pending", "pending"]
    assert answer(sqlite_url, "webhooks", "retry", waiting)["was"] == "pending"


def test_what_is_not_there_is_said_in_one_line(sqlite_url: str) -> None:
    asyncio.run(told(sqlite_url))
    gone = run("webhooks", "show", "run_1:2", "--db", sqlite_url)
    assert (gone.returncode, gone.stderr) == (
        1,
        "keptwork: No webhook 'run_1:2'; list them with: keptwork webhooks list\n",
    )
    assert run("webhooks", "list", "--state", "lost", "--db", sqlite_url).returncode == 2
    assert run("webhooks", "list", "--limit", "0", "--db", sqlite_url).returncode == 2

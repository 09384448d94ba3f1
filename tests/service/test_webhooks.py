"""Webhooks: what is asked for, what a flow's end puts into the outbox, and the secret that rests nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keptwork.core.lifecycles import RUN, WORKSTREAM, Lifecycle
from keptwork.errors import BadInput, NotFound
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store, Transaction, open_store
from keptwork.webhooks import outbox
from keptwork.webhooks.delivery import Courier
from tests.conformance.by_hand import hand_on
from tests.conformance.stage import decided, moved
from tests.support.hook_server import Reply, hook_server

OURS = 1
HOOK = {"url": "https://example.com/hook?token=abc"}
NAMED = {**HOOK, "secret_env": "KEPTWORK_WEBHOOK_SECRET_SHOP"}
CANARY = "canary-9f2c7e51-never-to-be-kept"


async def a_flow(store: Store, lifecycle: Lifecycle = RUN, webhook: Any = HOOK, start: str = "start") -> int:
    kept = None if webhook is None else outbox.checked(webhook)
    flow = await store.create(lifecycle, name="release", webhook=kept, correlation_id="c-1")
    await moved(store, lifecycle, flow, start)
    return flow


async def ended(store: Store, lifecycle: Lifecycle, flow: int, trigger: str, *, before: bool = False) -> None:
    """Ends a flow as the engine does: the move and the message in one transaction."""

    async def work(tx: Transaction) -> None:
        (row,) = await tx.rows(lifecycle, [flow])
        change = await decided(tx, lifecycle, flow, trigger, values={"error": "boom", "wake_at": None})
        if before:
            await outbox.enqueue(tx, row, lifecycle, change.move.target.name)
        assert await tx.apply([change]) == []
        if not before:
            await outbox.enqueue(tx, row, lifecycle, change.move.target.name)

    await store.atomically(work)


ENDS = [
    (RUN, "start", "succeed", "SUCCEEDED", "run.succeeded"),
    (RUN, "start", "fail", "FAILED", "run.failed"),
    (RUN, "start", "cancel", "CANCELED", "run.canceled"),
    (WORKSTREAM, "start_execution", "all_steps_succeed", "S_SUCCESS", "workstream.s_success"),
    (WORKSTREAM, "start_execution", "abandon", "S_ABANDONED", "workstream.s_abandoned"),
]


async def test_every_final_state_is_told_once_whenever_it_is_said_in_the_transaction(store: Store) -> None:
    for lifecycle, start, trigger, state, event in ENDS:
        for before in (True, False):
            flow = await a_flow(store, lifecycle, NAMED, start)
            await ended(store, lifecycle, flow, trigger, before=before)
            (row,) = await store.rows(lifecycle, [flow])
            (told,) = await store.deliveries(OURS, flow=flow)
            name = outbox.name_of(lifecycle.name, flow, row["seq"])
            body = json.loads(told.body)
            assert (told.event, told.seq, told.url, told.secret_env) == (event, row["seq"], *NAMED.values())
            assert (body["id"], body["event"], body["flow"]["state"]) == (name, event, state)
            assert (body["flow"]["name"], body["flow"]["correlation_id"]) == ("release", "c-1")
            assert body["flow"]["completed_at"] is not None
            assert (body["flow"]["error"] == "boom") == (state == "FAILED" and not before)


async def test_a_flow_without_a_webhook_tells_nothing(store: Store) -> None:
    flow = await a_flow(store, webhook=None)
    await ended(store, RUN, flow, "succeed")
    assert await store.deliveries(OURS) == []


async def test_an_end_that_is_undone_is_not_told(store: Store) -> None:
    flow = await a_flow(store)

    async def work(tx: Transaction) -> None:
        (row,) = await tx.rows(RUN, [flow])
        await outbox.enqueue(tx, row, RUN, "SUCCEEDED")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.atomically(work)
    assert await store.deliveries(OURS) == []


@pytest.mark.parametrize(
    "webhook",
    [
        "https://example.com", None, [], {}, {"url": None}, {"url": "http://example.com/"}, {"url": "https://10.0.0.1/"},
        {**HOOK, "secret": "x"}, {**HOOK, "secret_env": "AWS_SECRET_ACCESS_KEY"}, {**HOOK, "secret_env": ""},
        {**HOOK, "secret_env": "KEPTWORK_DB"}, {**HOOK, "secret_env": "KEPTWORK_WEBHOOK_SECRET_FILE"},
        {**HOOK, "secret_env": "KEPTWORK_WEBHOOK_SECRETS"}, {**HOOK, "secret_env": "keptwork_webhook_secret"},
        {**HOOK, "secret_env": 7}, {**HOOK, "secret_env": "KEPTWORK_WEBHOOK_SECRET_" + "A" * 61},
    ],
)  # fmt: skip
def test_a_webhook_that_cannot_be_is_refused_where_the_flow_is_submitted(webhook: Any) -> None:
    with pytest.raises(BadInput):
        outbox.checked(webhook)


def test_one_that_can_be_is_kept_with_the_name_of_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(outbox.checked(HOOK)) == HOOK
    assert json.loads(outbox.checked(NAMED)) == NAMED
    monkeypatch.setenv("KEPTWORK_WEBHOOK_ALLOW", "127.0.0.1:8080")
    assert outbox.checked({"url": "http://127.0.0.1:8080/"})


def test_a_secret_comes_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (None, "KEPTWORK_WEBHOOK_SECRET_SHOP"):
        with pytest.raises(BadInput, match="set KEPTWORK_WEBHOOK_SECRET"):
            outbox.secret(name)
    monkeypatch.setenv("KEPTWORK_WEBHOOK_SECRET", CANARY)
    assert outbox.secret(None) == CANARY.encode()
    (tmp_path / "key").write_text("a key from a file\n")
    monkeypatch.setenv("KEPTWORK_WEBHOOK_SECRET_SHOP_FILE", str(tmp_path / "key"))
    assert outbox.secret("KEPTWORK_WEBHOOK_SECRET_SHOP") == b"a key from a file"
    (tmp_path / "key").unlink()
    with pytest.raises(BadInput, match=r"cannot be read: No such file"):
        outbox.secret("KEPTWORK_WEBHOOK_SECRET_SHOP")
    monkeypatch.setenv("KEPTWORK_WEBHOOK_SECRET", "short")
    with pytest.raises(BadInput, match="has 5 bytes; it needs 16 or more"):
        outbox.secret(None)
    with pytest.raises(BadInput, match="is no name of a webhook's secret"):
        outbox.secret("PATH")


async def test_messages_are_found_by_name_and_shown_without_what_is_secret(store: Store) -> None:
    flow = await a_flow(store)
    await ended(store, RUN, flow, "fail")
    (told,) = await outbox.listed(store, OURS)
    name = outbox.name_of("run", flow, 3)
    assert await outbox.find(store, OURS, name) == told
    assert await outbox.listed(store, OURS, flow=name.rpartition(":")[0], state="pending") == [told]
    shown = outbox.as_json(told, whole=True)
    assert (shown["id"], shown["url"], shown["state"]) == (name, "https://example.com/hook?***", "pending")
    assert (shown["secret"], shown["body"]["flow"]["error"]) == ("KEPTWORK_WEBHOOK_SECRET", "boom")
    assert "abc" not in json.dumps(shown)
    for wrong in (f"{name}1", name.rpartition(":")[0], "x:1", f"{name[:-1]}x", f"{name}\n1", ":"):
        with pytest.raises(NotFound, match="keptwork webhooks list"):
            await outbox.find(store, OURS, wrong)
    await store.add_tenant("other")
    with pytest.raises(NotFound):
        await outbox.find(store, 2, name)
    with pytest.raises(NotFound):
        await outbox.retry(store, 2, name)
    with pytest.raises(BadInput, match="is no state of a message"):
        await outbox.listed(store, OURS, state="gone")


async def dump(url: str) -> str:
    """Every row of every table, as text."""
    hand = await hand_on(url)
    catalogue = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    if not url.startswith("sqlite"):
        catalogue = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    found = [str(row) for (table,) in await hand.run(catalogue) for row in await hand.run(f"SELECT * FROM {table}")]
    await hand.close()
    return "\n".join(found)


async def test_a_secret_rests_nowhere_in_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KEPTWORK_WEBHOOK_SECRET", CANARY)
    monkeypatch.setenv("KEPTWORK_WEBHOOK_ALLOW", "127.0.0.1")
    monkeypatch.setattr("keptwork.webhooks.http_post.FIRST_PAUSE_US", 0)
    store = await open_store(database_url)
    with hook_server(lambda number: Reply(404 if number <= 4 else 204)) as server:
        for _ in range(2):
            await ended(store, RUN, await a_flow(store, webhook={"url": server.url()}), "fail")
            await Courier(store, Outage(), lambda: 0).run_once()
    assert {one.state for one in await store.deliveries(OURS)} == {"given_up", "delivered"}
    kept = await dump(database_url)
    assert "boom" in kept
    assert CANARY not in kept
    assert CANARY not in caplog.text
    assert all(got.signed_with(CANARY) for got in server.got)
    await store.close()
    if database_url.startswith("sqlite"):
        folder = Path(database_url.removeprefix("sqlite:///")).parent
        assert not [file for file in folder.iterdir() if file.is_file() and CANARY.encode() in file.read_bytes()]

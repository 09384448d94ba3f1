"""Which statements tell that they wrote, and which operations may answer without having written."""

from __future__ import annotations

import inspect

import pytest

from keptwork.core.lifecycles import WORKER
from keptwork.errors import Unconfirmed
from keptwork.store import open_store
from keptwork.store.contract.writer import Writer
from keptwork.store.dialect import POSTGRES
from keptwork.store.postgres.standby_acknowledgement import EXEMPT, Operation, manner, verbs
from keptwork.store.postgres.store import PostgresStore
from keptwork.store.statements import Catalogue

SELECTS_THAT_WRITE = {
    *(
        "blobs_kept",
        "charge_to_close",
        "due_schedules",
        "keys_to_pump",
        "lock_asker",
        "lock_blobs",
        "lock_breaker",
        "lock_bucket",
    ),
    *("lock_budgets", "lock_jobs", "may_say", "silent_workers", "still_claimed", "still_held"),
    *("checkpoint", "claim", "claim_and_start", "enqueue", "enqueue_started", "hand_over", "resume_queue"),
}
"""Of each it was seen that it returns rows only if it wrote or locked some."""


def statements() -> dict[str, str]:
    """Every named statement, with those of one kind of flows for all kinds."""
    catalogue = Catalogue(POSTGRES)
    names = {*catalogue._raw, "claim_and_start", "enqueue_limited"}
    return {name: catalogue._filled(name) for name in names if "{flows}" not in catalogue._raw.get(name, "")}


def test_every_select_that_writes_was_looked_at() -> None:
    found = {name for name, sql in statements().items() if manner(sql) == (True, True) and "RETURNING" not in main(sql)}
    assert found - {"enqueue_limited"} == SELECTS_THAT_WRITE


def main(sql: str) -> str:
    """The part of a statement that is in no brackets."""
    depth, kept = 0, ""
    for sign in sql:
        depth += sign == "("
        kept += sign if depth == 0 else ""
        depth -= sign == ")"
    return kept


@pytest.mark.parametrize(
    ("sql", "writes", "tells"),
    [
        ("SELECT updated_at FROM jobs", False, True),
        ("SELECT id FROM jobs FOR NO KEY UPDATE SKIP LOCKED", True, True),
        ("INSERT INTO jobs (id) VALUES ($1) ON CONFLICT DO NOTHING", True, False),
        ("INSERT INTO jobs (id) SELECT $1 RETURNING id", True, True),
        ("WITH born AS (INSERT INTO jobs (id) VALUES ($1) RETURNING id) SELECT id FROM born", True, True),
        (
            "WITH born AS (INSERT INTO jobs (id) VALUES ($1) RETURNING id) INSERT INTO events SELECT id FROM born",
            True,
            False,
        ),
        ("WITH due AS (SELECT id FROM jobs) UPDATE jobs SET queue = $1 WHERE id IN (SELECT id FROM due)", True, False),
    ],
)
def test_statement_tells_whether_it_writes_and_returns_rows(sql: str, writes: bool, tells: bool) -> None:
    assert manner(sql) == (writes, tells)


def test_every_exempt_operation_has_a_reason_and_is_a_write() -> None:
    assert EXEMPT.keys() < set(verbs())
    assert all(reason.endswith(".") for reason in EXEMPT.values())


def test_every_write_of_the_contract_waits_for_what_it_answers_from() -> None:
    named = {name for name, _ in inspect.getmembers(Writer, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in named if hasattr(getattr(PostgresStore, name), "__wrapped__")} == named


async def test_record_on_another_server_confirms_nothing(postgres_copy: str) -> None:
    store = await open_store(postgres_copy)
    try:
        assert isinstance(store, PostgresStore)
        own = Operation()
        await store.lent(own).get(WORKER, 1, 1)
        await store.confirm(own.server)
        with pytest.raises(Unconfirmed):
            await store.confirm(("192.0.2.1", 5432))
    finally:
        await store.close()

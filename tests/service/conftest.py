"""A store whose time the test moves, a second tenant beside the default one, and a hand that no guard stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import apsw
import pytest

from keptwork.store import Store
from tests.conformance.by_hand import hand_on
from tests.support.database_time import Timed, open_timed


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about how long a sweep rests after each batch, so it does not."""
    monkeypatch.setattr("keptwork.maintenance.retention.RESTS", 0)


@pytest.fixture
async def timed(database_url: str) -> AsyncIterator[Timed]:
    """A store whose time the test moves."""
    opened = await open_timed(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def other_tenant(store: Store, database_url: str) -> int:
    """A second tenant beside the default one; there is no verb for it yet."""
    hand = await hand_on(database_url)
    await hand.run("INSERT INTO tenants (id, name, created_at) VALUES (2, 'other', 0)")
    await hand.close()
    return 2


@pytest.fixture
def tamper(request: pytest.FixtureRequest, database_url: str) -> Callable[..., object]:
    """Runs SQL with every trigger out of the way, and leaves none of that to be seen."""
    if database_url.startswith("sqlite"):
        return lambda *statements: _tamper_sqlite(database_url, statements)
    server, name = request.getfixturevalue("postgres_server"), urlsplit(database_url).path.lstrip("/")
    unguarded = "SET session_replication_role = replica"
    return lambda *statements: server.superuser_sql("; ".join((unguarded, *statements)), name)


def _tamper_sqlite(url: str, statements: tuple[str, ...]) -> None:
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    triggers: list[Any] = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    with db:  # in one transaction: each by itself would wait for the disk
        for sql in [f"DROP TRIGGER {name}" for name, _ in triggers] + [*statements] + [sql for _, sql in triggers]:
            db.execute(sql)
    db.close()

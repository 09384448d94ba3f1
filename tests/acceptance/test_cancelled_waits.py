"""The server tells in its own language that it gave up waiting for a standby."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import asyncpg
import pytest

from keptwork.errors import Unconfirmed
from keptwork.store import open_store
from keptwork.store.postgres.connections_server import is_cancelled_wait
from tests.support import postgres_server
from tests.support.deaf_standby import Primary, primary
from tests.support.postgres_binaries import _candidates

GERMAN = "de_DE.UTF-8"
WARNING = {
    "S": "WARNUNG",
    "V": "WARNING",
    "C": "01000",
    "M": "storniere Warten auf synchrone Replikation wegen Benutzeraufforderung",
    "F": "syncrep.c",
    "R": "SyncRepWaitForLSN",
}


def speaks_german(bindir: Path) -> bool:
    """Return whether the messages of a server are translated here."""
    if not (bindir / "postgres").is_file():
        return False
    asked = [str(bindir / "pg_config"), "--localedir"]
    folder = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return bool(list(Path(folder).glob("de/LC_MESSAGES/postgres-*.mo"))) if folder else False


TRANSLATED = next(filter(speaks_german, _candidates()), None)

needs_translation = pytest.mark.skipif(
    TRANSLATED is None or shutil.which("localedef") is None,
    reason="no PostgreSQL server with translated messages, or no localedef",
)


@pytest.mark.parametrize("state", ["01000", "57P01"])
def test_cancelled_wait_is_recognised_in_any_language(state: str) -> None:
    assert is_cancelled_wait({**WARNING, "C": state})


@pytest.mark.parametrize("other", [{"C": "01003"}, {"R": "pg_sleep"}, {"R": ""}])
def test_other_warning_is_not_taken_for_a_cancelled_wait(other: dict[str, str]) -> None:
    english = {**WARNING, "M": "canceling wait for synchronous replication due to user request"}
    assert not is_cancelled_wait({**english, **other})


@pytest.fixture
def german_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[postgres_server.PostgresServer]:
    """A server whose messages are German, and the locale it needs for that."""
    assert TRANSLATED is not None
    locales = Path(mkdtemp(prefix="keptwork-locales-"))
    locales.chmod(0o755)
    subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", locales / GERMAN], check=True, capture_output=True)
    monkeypatch.setenv("LOCPATH", str(locales))
    monkeypatch.setattr(postgres_server, "find_bindir", lambda: TRANSLATED)
    with postgres_server.start() as server:
        server.superuser_sql(f"ALTER SYSTEM SET lc_messages = '{GERMAN}'")
        server.superuser_sql("SELECT pg_reload_conf()")
        yield server
    shutil.rmtree(locales)


async def cancelled(deaf: Primary, write: Awaitable[object]) -> BaseException | None:
    """Cancel the wait of a commit; return what the client was told."""
    answer = asyncio.ensure_future(write)
    assert await deaf.holds_back(answer)
    await deaf.cancel_waits()
    await asyncio.wait([answer])
    return answer.exception()


@needs_translation
async def test_cancelled_wait_is_unknown_on_a_german_server(german_server: postgres_server.PostgresServer) -> None:
    url = german_server.create_database()
    store, own, heard = await open_store(url), await asyncpg.connect(url), []
    own.add_log_listener(lambda _, message: heard.append(message.message))
    async with primary(german_server, url) as deaf:
        await deaf.deafen()
        assert isinstance(await cancelled(deaf, store.set_queue_paused("default", True)), Unconfirmed)
        assert await cancelled(deaf, own.execute("UPDATE queues SET paused_at = 1")) is None  # the driver says nothing
    assert [text.startswith("storniere") for text in heard] == [True]
    await own.close()
    await store.close()

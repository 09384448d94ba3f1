"""Who sees the rows of a PostgreSQL database: after a restore under another owner, and for a role that came late."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from keptwork.audit.verify import verify
from keptwork.core.lifecycles import JOB
from keptwork.errors import HoldsNoRows, NotPermitted, SeesNoRows
from keptwork.store import Store, open_store
from keptwork.store import upgrade_migrate as service
from keptwork.store.contract.store import Store as Promises
from keptwork.store.postgres.row_security import TABLES, restore_access
from tests.conformance.promises import keeps
from tests.conformance.stage import queued, settled
from tests.support import postgres_server as postgres
from tests.support.command import run
from tests.support.postgres_binaries import environment
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.acceptance

HEIR = "heir"


@pytest.fixture(scope="module")
def other_cluster() -> Iterator[PostgresServer]:
    """A server whose logins may create no roles; it has an owner that the first server does not know."""
    with postgres.start(settings={"shared_buffers": "16MB"}) as server:
        server.superuser_sql("ALTER ROLE keptwork NOCREATEROLE")
        server.superuser_sql(f"CREATE ROLE {HEIR} LOGIN PASSWORD 'x'")
        yield server


@pytest.fixture
def reader(postgres_server: PostgresServer, postgres_copy: str) -> Iterator[str]:
    """The URL of a login that may read every table and owns none."""
    name = f"reader_{urlsplit(postgres_copy).path.lstrip('/')}"
    postgres_server.superuser_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT pg_read_all_data TO {name}")
    yield postgres_server.url(urlsplit(postgres_copy).path.lstrip("/"), name, "x")
    postgres_server.superuser_sql(f"DROP ROLE {name}")


def restored(old: PostgresServer, url: str, new: PostgresServer) -> str:
    """A dump by its owner, restored by the heir. Policies of the role keptwork fail: it does not exist there."""
    dump = [str(old.bin("pg_dump")), "-Fc", "--enable-row-security", "-d", url]
    content = subprocess.run(dump, check=True, capture_output=True, env=environment()).stdout
    name = urlsplit(new.create_database()).path.lstrip("/")
    new.superuser_sql(f"ALTER DATABASE {name} OWNER TO {HEIR}; ALTER ROLE keptwork RENAME TO somebody")
    heirs = new.url(name, HEIR, "x")
    argv = [str(new.bin("pg_restore")), "--no-owner", "-d", heirs]
    try:
        subprocess.run(argv, input=content, capture_output=True, env=environment())
    finally:
        new.superuser_sql("ALTER ROLE somebody RENAME TO keptwork")
    return heirs


async def test_restoring_access_changes_nothing_in_a_database_as_migrations_leave_it(postgres_copy: str) -> None:
    hand = await asyncpg.connect(postgres_copy)
    assert await restore_access(hand) == []
    secured = await hand.fetch("SELECT relname FROM pg_class WHERE relrowsecurity ORDER BY relname")
    assert [row[0] for row in secured] == sorted(TABLES)
    await hand.execute("DROP POLICY tenant ON runs; REVOKE INSERT ON jobs FROM keptwork_app")
    await hand.execute("ALTER TABLE steps NO FORCE ROW LEVEL SECURITY; ALTER POLICY engine ON events USING (false)")
    assert await restore_access(hand) == ["events", "jobs", "runs", "steps"]
    assert await restore_access(hand) == []
    await hand.close()


@keeps(Promises.insist_on_sight, "Raise `SeesNoRows` if the database hides its rows from this login")
async def test_a_database_that_hides_its_rows_is_told_apart_from_an_empty_one(store: Store, database_url: str) -> None:
    await store.insist_on_sight()
    if not database_url.startswith("postgresql"):
        return
    hand = await asyncpg.connect(database_url)
    await hand.execute("DROP POLICY engine ON jobs")
    with pytest.raises(SeesNoRows, match="hides them from keptwork"):
        await store.insist_on_sight()
    with pytest.raises(SeesNoRows):
        await service.migrate(database_url)
    await service.migrate(database_url, guards=True)
    await store.insist_on_sight()
    await hand.close()


async def test_a_login_that_owns_nothing_is_told_that_it_sees_no_rows(postgres_copy: str, reader: str) -> None:
    store = await open_store(postgres_copy)
    await queued(store)
    await store.close()
    with pytest.raises(SeesNoRows, match="Log in as keptwork"):
        await open_store(reader)
    for command in (("doctor",), ("audit", "verify"), ("jobs", "list")):
        done = run(*command, "--db", reader)
        assert (done.returncode, done.stdout) == (1, "")
        assert "keptwork: This login sees no rows" in done.stderr
    with pytest.raises(NotPermitted):
        await service.migrate(reader, guards=True)


@keeps(Promises.insist_on_sight, "Raise `HoldsNoRows` if it was restored from an empty dump")
async def test_a_dump_by_a_login_that_sees_no_rows_is_refused_once_it_is_restored(
    postgres_server: PostgresServer, other_cluster: PostgresServer, postgres_copy: str, reader: str
) -> None:
    store = await open_store(postgres_copy)
    await queued(store)
    await store.close()
    url = restored(postgres_server, reader, other_cluster)
    with pytest.raises(SeesNoRows):
        await open_store(url)
    for command in (("migrate", "--guards"), ("doctor",), ("jobs", "list")):
        done = run(*command, "--db", url)
        assert (done.returncode, done.stdout) == (1, "")
        assert "it was restored from an empty dump" in done.stderr
    with pytest.raises(HoldsNoRows):
        await open_store(url)


async def test_a_dump_restored_in_another_cluster_under_another_owner_is_refused_until_access_is_restored(
    postgres_server: PostgresServer, other_cluster: PostgresServer, postgres_copy: str
) -> None:
    store = await open_store(postgres_copy)
    await settled(store)
    await queued(store, 3)
    counts, events = await store.counts(JOB), await store.event_count()
    await store.close()
    url = restored(postgres_server, postgres_copy, other_cluster)
    with pytest.raises(SeesNoRows, match="hides them from heir"):
        await open_store(url)
    done = run("migrate", "--guards", "--db", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Put back: policies and grants of jobs" in done.stdout
    store = await open_store(url)
    assert (await store.counts(JOB), await store.event_count()) == (counts, events)
    assert (await verify(store)).problems == []
    await queued(store)
    await store.close()


async def test_a_role_created_after_the_migrations_gets_its_grants_by_migrate_with_guards(
    other_cluster: PostgresServer,
) -> None:
    url = other_cluster.create_database()
    store = await open_store(url)
    assert "keptwork_app" in str(await store.cannot_narrow())
    other_cluster.superuser_sql("CREATE ROLE keptwork_app NOLOGIN; GRANT keptwork_app TO keptwork")
    assert "may not read" in str(await store.cannot_narrow())
    await service.migrate(url, guards=True)
    assert await store.cannot_narrow() is None
    await store.close()

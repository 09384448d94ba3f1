"""The test server is a real server, and never outlives its owner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.postgres_server import PostgresServer, start

pytestmark = pytest.mark.acceptance

REPOSITORY = Path(__file__).parents[2]

START_AND_SLEEP = """
import time
from tests.support.postgres_server import start
server = start()
print(server.folder, flush=True)
time.sleep(600)
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="finds processes through /proc")


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with start() as server:
        yield server


def processes_in(folder: Path) -> list[int]:
    """Every living process whose working folder is inside `folder`, as all of a server's processes' are."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _works_in(folder, entry)]


def _works_in(folder: Path, process: Path) -> bool:
    try:
        return (process / "cwd").resolve(strict=True).is_relative_to(folder)
    except OSError:  # it ended while we looked
        return False


def wait_until_gone(folder: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not processes_in(folder) and not folder.exists():
            return True
        time.sleep(0.05)
    return False


async def fetch_value(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_it_is_a_real_server(postgres_url: str) -> None:
    assert str(await fetch_value(postgres_url, "SELECT version()")).startswith("PostgreSQL ")


async def test_the_role_owns_its_database_and_is_no_superuser(postgres_url: str) -> None:
    rights = "SELECT (rolsuper, rolcreatedb, rolcreaterole) FROM pg_roles WHERE rolname = current_user"
    owner = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
    assert await fetch_value(postgres_url, rights) == (False, True, True)
    assert await fetch_value(postgres_url, owner) == "keptwork"


async def test_the_password_is_checked(postgres_server: PostgresServer) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(postgres_server.url(password="wrong"))


async def test_a_database_is_made_from_a_template_and_dropped_in_use(postgres_server: PostgresServer) -> None:
    template = postgres_server.create_database()
    await fetch_value(template, "CREATE TABLE kept AS SELECT 17 AS value")
    copy = postgres_server.create_database(template=template)
    postgres_server.drop_database(template)
    connection = await asyncpg.connect(copy)
    assert await connection.fetchval("SELECT value FROM kept") == 17
    postgres_server.drop_database(copy)
    connection.terminate()
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(copy)


async def test_committed_data_survives_kill9_and_restart(own_server: PostgresServer) -> None:
    url, first_pid = own_server.create_database(), own_server.pid
    await fetch_value(url, "CREATE TABLE kept AS SELECT 17 AS value")
    own_server.kill9()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncpg.connect(url)
    own_server.restart()
    assert own_server.pid != first_pid
    assert await fetch_value(url, "SELECT value FROM kept") == 17


@needs_proc
async def test_no_process_is_left_after_stop_and_no_file_after_close(own_server: PostgresServer) -> None:
    idle = await asyncpg.connect(own_server.url())
    assert own_server.pid in processes_in(own_server.folder)
    own_server.stop()
    assert processes_in(own_server.folder) == []
    idle.terminate()
    own_server.close()
    assert not own_server.folder.exists()


@needs_proc
def test_no_server_outlives_a_killed_owner() -> None:
    owner = subprocess.Popen([sys.executable, "-c", START_AND_SLEEP], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert processes_in(folder)
        os.kill(owner.pid, signal.SIGKILL)
    assert wait_until_gone(folder, seconds=5)


def test_an_attached_server_is_not_ours_to_stop(postgres_server: PostgresServer) -> None:
    attached = PostgresServer.attach(postgres_server.address)
    with pytest.raises(RuntimeError, match="only the process that started"):
        attached.kill9()

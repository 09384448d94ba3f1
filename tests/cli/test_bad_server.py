"""A PostgreSQL server that cannot serve: one line that says what and what to do, and nothing made on the way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from keptwork.store.migrations import newest
from tests.cli.refusals import ALL, READS, refused
from tests.support.command import run


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that is taken by us and that nobody listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextmanager
def silent_port() -> Iterator[int]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in taken:
                connection.close()


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_server_that_does_not_run(command):
    with closed_port() as port:
        done = run(*command, "--db", f"postgresql://ann:secret@127.0.0.1:{port}/work")
    line = refused(done, 1, "Cannot reach the PostgreSQL server", f"127.0.0.1:{port}", "check that it runs")
    assert "secret" not in line


def test_a_host_that_does_not_exist():
    refused(run("audit", "verify", "--db", "postgresql://ann@no-such-host.invalid/work"), 1, "Cannot reach", "check")


@pytest.mark.parametrize("command", [("events", "list"), ("migrate",), ("demo",)], ids=" ".join)
def test_a_server_that_never_answers(command):
    with silent_port() as port:
        began = time.monotonic()
        done = run(*command, "--db", f"postgresql://ann@127.0.0.1:{port}/work", KEPTWORK_CONNECT_TIMEOUT="0.5")
        took = time.monotonic() - began
    refused(done, 1, "no answer within 0.5 s", "check that it runs")
    assert took < 8


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "inf", "nan"])
def test_a_time_to_wait_that_is_none(seconds):
    done = run("events", "list", "--db", "postgresql://ann@127.0.0.1:1/work", KEPTWORK_CONNECT_TIMEOUT=seconds)
    refused(done, 2, f"KEPTWORK_CONNECT_TIMEOUT={seconds} is no time to wait", "KEPTWORK_CONNECT_TIMEOUT=5")


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_wrong_password(command, postgres_server):
    done = run(*command, "--db", postgres_server.url(password="guessed"))
    line = refused(done, 1, "refused the login", "check user and password")
    assert "guessed" not in line


def test_an_unknown_user(postgres_server):
    done = run("events", "list", "--db", postgres_server.url(user="nobody-here", password="guessed"))
    refused(done, 1, "refused the login", "check user and password")


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_database_the_server_does_not_have(command, postgres_server):
    refused(run(*command, "--db", postgres_server.url("not_there")), 2, "does not exist", "createdb not_there")


@pytest.mark.acceptance
@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_an_install_without_the_driver(command):
    blocked = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'asyncpg': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "from keptwork.cli.main import run\nrun(sys.argv[1:])\n"
    )
    done = run(*command, "--db", "postgresql://ann@127.0.0.1:1/work", python=("-c", blocked))
    refused(done, 2, "pip install 'keptwork[postgres]'")


@pytest.mark.parametrize("command", [*READS, ("migrate",), ("migrate", "--dry-run"), ("demo",)], ids=" ".join)
def test_a_postgres_database_of_another_program(command, postgres_server, postgres_url):
    name = postgres_url.rpartition("/")[2]
    postgres_server.superuser_sql("CREATE TABLE jobs (id int)", name)
    refused(run(*command, "--db", postgres_url), 1, "another program", "left untouched", "--db")
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert postgres_server.superuser_sql(tables, name) == "1"


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_reading_an_empty_postgres_database_makes_no_table(command, postgres_server, postgres_url):
    refused(run(*command, "--db", postgres_url), 2, "has schema 0", "keptwork migrate")
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert postgres_server.superuser_sql(tables, postgres_url.rpartition("/")[2]) == "0"


def test_a_newer_postgres_database(postgres_server, postgres_url):
    assert run("migrate", "--db", postgres_url).returncode == 0
    ahead = f"INSERT INTO keptwork_migrations (number, name, applied_at) VALUES ({newest() + 7}, 'later', 0)"
    postgres_server.superuser_sql(ahead, postgres_url.rpartition("/")[2])
    for command in ALL:
        refused(run(*command, "--db", postgres_url), 2, f"has schema {newest() + 7}", "upgrade Keptwork")


def test_a_cursor_of_the_other_database(postgres_server, postgres_url):
    assert run("migrate", "--db", postgres_url).returncode == 0
    for command in READS[:2]:
        refused(run(*command, "--after", "17", "--db", postgres_url), 2, "'17' is no event cursor of this database")

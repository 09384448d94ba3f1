"""A second PostgreSQL server, on a copy of a running one made by pg_basebackup: for itself, or as its standby."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.postgres_binaries import environment, server_account
from tests.support.postgres_server import PostgresServer, _free_port, _private_folder, _watch
from tests.support.postmaster import Postmaster

STANDBY = "second"
FOLLOW_SECONDS = 30


@contextmanager
def restored(primary: PostgresServer, *more: str, **settings: str) -> Iterator[PostgresServer]:
    """Takes the backup now, starts a server on it, and removes all of it in the end."""
    account = server_account()
    folder, port = _private_folder(account), _free_port()
    argv = [str(primary.bin("pg_basebackup")), "-D", str(folder / "data"), "-c", "fast", "-X", "stream", "--no-sync"]
    target = ["-h", str(primary.socket_folder), "-p", str(primary.port), "-U", "postgres"]
    postmaster, watchdog = Postmaster(folder, primary.bin(""), account), _watch(folder)
    try:
        subprocess.run(
            [*argv, *target, *more], check=True, env=environment(), cwd=folder, timeout=60, **account.popen()
        )
        chosen = {"port": str(port), "unix_socket_directories": str(folder / "socket"), **settings}
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in chosen.items())
        postmaster.launch()
        yield PostgresServer(folder, primary.bin(""), port, primary._password)
    finally:
        postmaster.abandon()
        shutil.rmtree(folder)
        watchdog.kill()
        watchdog.wait()


@contextmanager
def standby(primary: PostgresServer, *, synchronous: bool = True) -> Iterator[PostgresServer]:
    """A server that follows the other one. If it is a synchronous one, nothing is acknowledged from now on that it has
    not written as well."""
    with restored(primary, "--write-recovery-conf", cluster_name=STANDBY) as second:
        if synchronous:
            primary.superuser_sql(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
            primary.superuser_sql("SELECT pg_reload_conf()")
        wanted = "sync" if synchronous else "async"
        deadline = time.monotonic() + FOLLOW_SECONDS
        while primary.superuser_sql("SELECT sync_state FROM pg_stat_replication") != wanted:
            assert time.monotonic() < deadline, "the standby does not follow"
            time.sleep(0.05)
        yield second


def promote(second: PostgresServer) -> None:
    """The standby takes writes from now on."""
    assert second.superuser_sql("SELECT pg_promote()") == "t"

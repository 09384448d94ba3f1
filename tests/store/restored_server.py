"""A second PostgreSQL server, on a copy of a running one made by pg_basebackup."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.postgres_binaries import environment, server_account
from tests.support.postgres_server import PostgresServer, _free_port, _private_folder, _watch
from tests.support.postmaster import Postmaster


@contextmanager
def restored(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Takes the backup now, starts a server on it, and removes all of it in the end."""
    account = server_account()
    folder, port = _private_folder(account), _free_port()
    argv = [str(primary.bin("pg_basebackup")), "-D", str(folder / "data"), "-c", "fast", "-X", "stream", "--no-sync"]
    target = ["-h", str(primary.socket_folder), "-p", str(primary.port), "-U", "postgres"]
    postmaster, watchdog = Postmaster(folder, primary.bin(""), account), _watch(folder)
    try:
        subprocess.run([*argv, *target], check=True, env=environment(), cwd=folder, timeout=60, **account.popen())
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write(f"port = {port}\nunix_socket_directories = '{folder / 'socket'}'\n")
        postmaster.launch()
        yield PostgresServer(folder, primary.bin(""), port, primary._password)
    finally:
        postmaster.abandon()
        shutil.rmtree(folder)
        watchdog.kill()
        watchdog.wait()

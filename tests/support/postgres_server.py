"""A real PostgreSQL server for tests and benches, gone without a trace when its owner is.

    with start() as server:
        url = server.create_database()

It listens on a unix socket (superuser `postgres`) and on a loopback TCP port (role `keptwork`, with a password:
owner of every database made here, allowed to create databases and roles, no superuser). Everything it writes
is in one temporary folder. Other processes reach it with `PostgresServer.attach(server.address)`.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit

from tests.support import postgres_watchdog
from tests.support.postgres_binaries import Account, environment, find_bindir, server_account, usable_bindir
from tests.support.postmaster import Postmaster

ROLE = "keptwork"

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
}


class SqlFailed(Exception):
    """psql refused a statement; its message follows."""


class PostgresServer:
    """The server as users see it. Only the process that started it has a `_postmaster` and may stop it."""

    def __init__(self, folder: Path, bindir: Path, port: int, password: str) -> None:
        self.folder = folder
        self.port = port
        self._bindir = bindir
        self._password = password
        self._postmaster: Postmaster | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @classmethod
    def attach(cls, address: str) -> "PostgresServer":
        """The server that another process started, for everything but stopping it."""
        fields = json.loads(address)
        return cls(Path(fields["folder"]), Path(fields["bindir"]), fields["port"], fields["password"])

    @property
    def address(self) -> str:
        """What `attach` needs, as text that fits an environment variable."""
        return json.dumps(
            {
                "folder": str(self.folder),
                "bindir": str(self._bindir),
                "port": self.port,
                "password": self._password,
            }
        )

    @property
    def pid(self) -> int:
        return self._owned().pid

    def url(self, database: str = "postgres", user: str = ROLE, password: str | None = None) -> str:
        """Over loopback TCP. The password of role `keptwork` is known; any other role's must be given."""
        if password is None and user == ROLE:
            password = self._password
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password is not None else "")
        return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def bin(self, name: str) -> Path:
        return self._bindir / name

    @property
    def socket_folder(self) -> Path:
        """What `-h` of psql and pg_basebackup takes to connect as superuser."""
        return self.folder / "socket"

    def superuser_sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement as `postgres` and return its rows as unaligned text."""
        argv = [str(self.bin("psql")), "-XqAt", "-v", "ON_ERROR_STOP=1", "-h", str(self.socket_folder)]
        target = ["-p", str(self.port), "-U", "postgres", "-d", database, "-c", statement]
        done = subprocess.run([*argv, *target], capture_output=True, text=True, env=environment())
        if done.returncode:
            raise SqlFailed(done.stderr.strip())
        return done.stdout.strip()

    def create_database(self, template: str | None = None) -> str:
        """A new database owned by `keptwork`: empty, or a copy of `template` (a URL from here, or a name)."""
        name = f"test_{secrets.token_hex(6)}"
        source = _database_name(template) if template else "template1"
        self.superuser_sql(f'CREATE DATABASE "{name}" OWNER {ROLE} TEMPLATE "{source}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Also while somebody is still connected: a failed test may have left connections open."""
        self.superuser_sql(f'DROP DATABASE IF EXISTS "{_database_name(url)}" WITH (FORCE)')

    def stop(self) -> None:
        """Shut down in good order; `restart` brings the same data back."""
        self._owned().stop()

    def restart(self) -> None:
        """Start again on the same data folder and port, after stopping in good order if it still runs."""
        self._owned().stop()
        self._owned().launch()

    def kill9(self) -> None:
        """Crash the server; `restart` recovers what was committed."""
        self._owned().kill9()

    def close(self) -> None:
        """Stop for good and remove every file. An attached server is left to its owner."""
        if self._watchdog is None:
            return
        if self._postmaster is not None:
            self._postmaster.abandon()
            self._postmaster = None
        shutil.rmtree(self.folder)
        # Last, so that whatever interrupts the lines above still leaves somebody to clean up.
        self._watchdog.kill()
        self._watchdog.wait()
        self._watchdog = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _owned(self) -> Postmaster:
        if self._postmaster is None:
            raise RuntimeError("only the process that started the server may signal it, until it is closed")
        return self._postmaster

    def _begin(self, account: Account, settings: dict[str, str]) -> None:
        self._watchdog = _watch(self.folder)  # first: from here on nothing can be left behind
        self._bindir = usable_bindir(self._bindir, self.folder, account)
        self._postmaster = Postmaster(self.folder, self._bindir, account)
        self._postmaster.initialise(settings)
        self._postmaster.launch()
        self.superuser_sql(f"CREATE ROLE {ROLE} LOGIN CREATEDB CREATEROLE PASSWORD '{self._password}'")


def start(durable: bool = False, settings: dict[str, str] | None = None) -> PostgresServer:
    """A new server, ready to use. `durable` keeps fsync on, for benches: without it committed data survives a
    crash of the server, but not of the machine."""
    account, bindir = server_account(), find_bindir()
    server = PostgresServer(_private_folder(account), bindir, _free_port(), secrets.token_hex(16))
    chosen = {
        **SETTINGS,
        "fsync": "on" if durable else "off",
        "port": str(server.port),
        "unix_socket_directories": str(server.socket_folder),
        **(settings or {}),
    }
    try:
        server._begin(account, chosen)
    except BaseException:
        server.close()
        raise
    return server


def _private_folder(account: Account) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="keptwork-pg-", dir=_temporary_root(account)))
    (folder / "socket").mkdir(mode=0o700)
    account.owns(folder)
    return folder


def _temporary_root(account: Account) -> Path:
    """The usual place, unless the server's user cannot reach it (TMPDIR inside root's home)."""
    usual = Path(tempfile.gettempdir()).resolve()
    reachable = all(folder.stat().st_mode & 0o001 for folder in (usual, *usual.parents))
    return usual if account.uid is None or reachable else Path("/tmp")  # noqa: S108 - mkdtemp makes it private


def _free_port() -> int:
    """Below the range outgoing connections draw from, so that nobody takes it while the server is down."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _watch(folder: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-IS", str(postgres_watchdog.__file__)]
    return subprocess.Popen(
        [*program, str(os.getpid()), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _database_name(url_or_name: str) -> str:
    return urlsplit(url_or_name).path.lstrip("/") if "://" in url_or_name else url_or_name

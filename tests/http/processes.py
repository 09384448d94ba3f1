"""Servers as they are run: `keptwork serve` in a process of its own, and keys to it."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from tests.support import command
from tests.support import postgres_server as postgres
from tests.support.dev_server import announced

UNLIMITED = ["--requests-per-second", "0", "--max-in-flight", "0", "--max-queued", "0"]


class Served(NamedTuple):
    """A server that answers."""

    address: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


class Opened(NamedTuple):
    """A server of a database that was made for it, and a key to it."""

    address: str
    key: str
    url: str


@contextmanager
def served(url: str, *options: str) -> Iterator[Served]:
    """A server of a database that is there, until the block ends."""
    process = command.start("serve", "--port", "0", "--db", url, "--json", *options)
    reader = threading.Thread(target=_drained, args=[process.stderr])
    try:
        address = announced(process)["address"]
        reader.start()
        yield Served(address, process)
        process.terminate()
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait(60)
        reader.join(60)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _drained(log: IO[str]) -> None:
    """A log that nobody reads would stop the server at last."""
    for _ in log:
        pass


def new_key(url: str, tenant: str = "default", scopes: str = "admin") -> str:
    """A key that was made on the command line."""
    made = command.run(
        "keys", "create", "--name", "fuzz", "--scopes", scopes, "--tenant", tenant, "--db", url, "--json"
    )
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["secret"])


@contextmanager
def server(database: str, configuration: str = "") -> Iterator[Opened]:
    """Over a new database of either kind, with what its `keptwork.toml` says."""
    with ExitStack() as ending:
        folder = ending.enter_context(tempfile.TemporaryDirectory())
        said = Path(folder, "keptwork.toml")
        said.write_text(configuration)
        if database == "sqlite":
            url = f"sqlite:///{Path(folder)}/keptwork.db"
        else:
            url = ending.enter_context(postgres.start(settings={"autovacuum": "off"})).create_database()
        assert command.run("migrate", "--db", url).returncode == 0
        address = ending.enter_context(served(url, *UNLIMITED, "--config", str(said))).address
        yield Opened(address, new_key(url), url)

"""Servers as they are run: `detent serve` in a process of its own, and keys to it."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.support import command
from tests.support import postgres_server as postgres
from tests.support.dev_server import announced, ended

UNLIMITED = ["--requests-per-second", "0", "--max-in-flight", "0", "--max-queued", "0"]


@contextmanager
def served(url: str, *options: str) -> Iterator[tuple[str, str]]:
    """Where it is, and a key to all of it; until the block ends."""
    assert command.run("migrate", "--db", url).returncode == 0
    with ExitStack() as ending:
        process = command.start("serve", "--port", "0", "--db", url, "--json", *options)
        ending.callback(ended, process)
        threading.Thread(target=_drained, args=[process.stderr], daemon=True).start()
        yield announced(process)["address"], new_key(url)


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
def server(database: str) -> Iterator[tuple[str, str]]:
    """Over a new database of either kind."""
    with ExitStack() as ending:
        if database == "sqlite":
            folder = ending.enter_context(tempfile.TemporaryDirectory())
            url = f"sqlite:///{Path(folder)}/detent.db"
        else:
            url = ending.enter_context(postgres.start(settings={"autovacuum": "off"})).create_database()
        yield ending.enter_context(served(url, *UNLIMITED))

"""The databases and the broker under the systems: one server of each kind for all, something empty for each."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from bench.peers.catalogue import Engine, System
from tests.support import postgres_server
from tests.support.postgres_server import PostgresServer


class Engines:
    """Starts what is asked for when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._numbers = count()
        self._postgres: PostgresServer | None = None
        self._redis: Path | None = None

    def __enter__(self) -> "Engines":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def empty(self, system: System) -> Iterator[str]:
        """A target of the system's engine with nothing in it, gone afterwards."""
        makers: dict[Engine, Callable[[System], Iterator[str]]] = {
            "postgres": self._database,
            "sqlite": self._file,
            "redis": self._broker,
        }
        yield from makers[system.engine](system)

    def _database(self, _: System) -> Iterator[str]:
        """What the system before left to write is written first, so that nobody pays for another."""
        if self._postgres is None:
            self._postgres = self._stack.enter_context(postgres_server.start(durable=True))
        url = self._postgres.create_database()
        self._postgres.superuser_sql("CHECKPOINT")
        yield url
        self._postgres.drop_database(url)

    def _file(self, system: System) -> Iterator[str]:
        folder = self._folder / f"file-{next(self._numbers)}"
        folder.mkdir()
        yield f"sqlite:///{folder}/bench.db" if system.ours else str(folder / "bench.db")
        shutil.rmtree(folder)

    def _broker(self, _: System) -> Iterator[str]:
        raise NotImplementedError

"""The databases and the broker under the systems: one PostgreSQL for all of them, something empty for each figure."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.peers import redis_server
from bench.peers.catalogue import Engine, System
from bench.peers.prefect import server as prefect_server
from bench.peers.restate import server as restate_server
from tests.support import postgres_server
from tests.support.postgres_server import PostgresServer


class Engines:
    """Starts what is asked for when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._numbers = count()
        self._postgres: PostgresServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def empty(self, system: System) -> AbstractContextManager[str]:
        """A target of the system's engine with nothing in it, gone afterwards."""
        makers: dict[Engine, Callable[[System], AbstractContextManager[str]]] = {
            "postgres": self._database,
            "sqlite": self._file,
            "unsynced": self._unsynced_file,
            "redis": self._broker,
            "server": self._server,
            "processes": self._files,
            "threads": self._files,
        }
        return makers[system.engine](system)

    @contextmanager
    def _database(self, _: System) -> Iterator[str]:
        """What the system before left to write is written first, so that nobody pays for another."""
        if self._postgres is None:
            self._postgres = self._stack.enter_context(postgres_server.start(durable=True))
        url = self._postgres.create_database()
        self._postgres.superuser_sql("CHECKPOINT")
        try:
            yield url
        finally:
            self._postgres.drop_database(url)

    @contextmanager
    def _file(self, system: System) -> Iterator[str]:
        with self._new_folder() as folder:
            path = folder / "bench.db"
            yield str(path) if system.name == "huey" else f"sqlite:///{path}"

    @contextmanager
    def _unsynced_file(self, system: System) -> Iterator[str]:
        with self._file(system) as url:
            yield f"{url}?synchronous=normal"

    @contextmanager
    def _files(self, system: System) -> Iterator[str]:
        """For a system without a database: how it is to work, and where its files may lie."""
        with self._new_folder() as folder:
            yield f"{system.engine}:{folder}"

    @contextmanager
    def _broker(self, _: System) -> Iterator[str]:
        with self._new_folder() as folder, redis_server.started(folder) as url:
            yield url

    @contextmanager
    def _server(self, system: System) -> Iterator[str]:
        start = {"prefect": prefect_server.started, "restate": restate_server.started}[system.name]
        with self._new_folder() as folder, start(folder) as addresses:
            yield addresses

    @contextmanager
    def _new_folder(self) -> Iterator[Path]:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

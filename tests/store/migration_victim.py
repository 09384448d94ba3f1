"""Processes that are killed while they migrate. Run as a program; it forks one victim per statement.

    python -m tests.store.migration_victim MODE URL EVERY

`{k}` in the URL is the number of the victim, so that each has a database (or a schema) of its own. Victim k gets
SIGKILL from its own hand once k statements have been executed, k being 0, EVERY, 2 × EVERY and so on: "after" the k-th
was answered, or "during" it, when it has only been sent. The first victim that lives to the end ends the series; one
line is printed for each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import asyncpg

from keptwork.store.postgres import connections_server
from keptwork.store.postgres.migrate import migrate_database
from keptwork.store.sqlite import file
from keptwork.store.sqlite.file_migrate import migrate_file
from keptwork.store.url import DatabaseUrl, database_url


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def migrate_sqlite(url: DatabaseUrl, k: int) -> None:
    db = file.connect(url.path)
    executed = 0

    def execute(sql: str) -> None:
        nonlocal executed
        db.execute(sql)
        executed += 1
        if executed == k:
            die()

    if k == 0:
        die()
    migrate_file(db, execute)


async def migrate_postgres(url: DatabaseUrl, k: int, mode: str) -> None:
    connection = await connections_server.connect(url)
    await migrate_database(connection, _fatal_execute(connection, k, mode))


def _fatal_execute(connection: asyncpg.Connection, k: int, mode: str) -> Callable[[str], Awaitable[object]]:
    executed = 0

    async def execute(sql: str) -> None:
        nonlocal executed
        executed += 1
        if executed == k and mode == "during":
            answer = asyncio.ensure_future(connection.execute(sql))
            await asyncio.sleep(0)  # one turn of the loop: the statement has gone out
            die()
            await answer
        if k == 0:
            die()
        await connection.execute(sql)
        if executed == k:
            die()

    return execute


def victim(mode: str, url: DatabaseUrl, k: int) -> None:
    if url.dialect == "sqlite":
        migrate_sqlite(url, k)
    else:
        asyncio.run(migrate_postgres(url, k, mode))


def series(mode: str, template: str, every: str) -> None:
    """Fork, wait, report, until somebody survives."""
    for k in range(0, 10_000, int(every)):
        child = os.fork()
        if child == 0:
            victim(mode, database_url(template.replace("{k}", f"{k:03}")), k)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        survived = os.waitstatus_to_exitcode(status) != -signal.SIGKILL
        print(k, os.waitstatus_to_exitcode(status), flush=True)
        if survived:
            return


if __name__ == "__main__":
    series(*sys.argv[1:])

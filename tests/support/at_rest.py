"""All that a database holds, as one text, to look for what must not be there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg


async def everything(url: str) -> str:
    """All that a database holds: the files themselves, or every row of every table."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        files = sorted(path.parent.glob(f"{path.name}*"))
        # Another process reads them: closing a descriptor here would drop the locks of a store that is open.
        cat = await asyncio.create_subprocess_exec("cat", *files, stdout=asyncio.subprocess.PIPE)
        return (await cat.communicate())[0].decode("latin-1")
    connection = await asyncpg.connect(url)
    try:
        named = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        tables = [row[0] for row in await connection.fetch(named)]
        rows = [row for table in tables for row in await connection.fetch(f'SELECT * FROM "{table}"')]
        return "".join(repr(tuple(row)) for row in rows)
    finally:
        await connection.close()

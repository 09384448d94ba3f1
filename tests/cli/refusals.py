"""What every refusal has in common, and the commands that must refuse."""

from __future__ import annotations

import asyncio
from pathlib import Path

from keptwork.store import open_store
from tests.support.command import Done
from tests.support.lives import live

READS = (("events", "list"), ("events", "follow"), ("audit", "verify"), ("audit", "export"))
ALL = (*READS, ("migrate",), ("migrate", "--dry-run"), ("demo",))


def refused(done: Done, code: int, *words: str) -> str:
    """One line, the exit code, and the words it must have."""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("keptwork: ")
    assert "unexpected" not in lines[0]
    for word in words:
        assert word in lines[0]
    assert (done.returncode, done.stdout) == (code, "")
    return lines[0]


def refused_in_usage(done: Done, *words: str) -> None:
    """A mistyped command also says where its help is."""
    problem, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert hint.startswith("Try: keptwork ")
    assert hint.endswith(" --help")
    for word in words:
        assert word in problem


def populate(url: str, jobs: int = 60) -> int:
    """A database with work in it; returns how many events."""

    async def fill() -> int:
        store = await open_store(url)
        await live(store, jobs)
        count = await store.event_count()
        await store.close()
        return count

    return asyncio.run(fill())


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}

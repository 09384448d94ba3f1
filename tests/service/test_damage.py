"""Bytes that change under the product: the audit says so, or the file is refused; never a verdict that is wrong."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.errors import StoreError
from keptwork.store import open_store
from tests.support.lives import live

PAGE = 4096

# What a clean verdict vouches for: the columns that are replayed or compared.
VOUCHED = [
    "SELECT entity, entity_id, seq, epoch, type, trigger, ts, from_state, to_state, tenant_id FROM events ORDER BY id",
    *(
        f"SELECT id, tenant_id, move, {', '.join(verify.COMPARED)} FROM {table} ORDER BY id"
        for table in sorted({lifecycle.table for lifecycle in LIFECYCLES.values()})
    ),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "keptwork.db"

    async def fill() -> None:
        store = await open_store(f"sqlite:///{path}")
        await live(store, 80)
        await store.close()

    asyncio.run(fill())
    return path


def vouched(path: Path) -> list[Any]:
    db = apsw.Connection(str(path))
    try:
        return [db.execute(sql).fetchall() for sql in VOUCHED]
    finally:
        db.close()


def outcome(path: Path) -> str:
    """The error that refused the file, or the verdict."""
    try:
        return "clean" if asyncio.run(_verdict(path)).clean else "reported"
    except StoreError as refusal:
        return type(refusal).__name__


async def _verdict(path: Path) -> verify.Verdict:
    store = await open_store(f"sqlite:///{path}", migrate=False, create=False)
    try:
        return await verify.verify(store)
    finally:
        await store.close()


def test_the_undamaged_file_is_clean(original, tmp_path):
    assert outcome(Path(shutil.copy(original, tmp_path / "d.db"))) == "clean"


@pytest.mark.acceptance
def test_every_page_that_is_overwritten_is_noticed(original, tmp_path):
    dice = random.Random(12)
    for page in range(original.stat().st_size // PAGE):
        path = Path(shutil.copy(original, tmp_path / "d.db"))
        with path.open("r+b") as file:
            file.seek(page * PAGE)
            file.write(dice.randbytes(PAGE))
        assert outcome(path) != "clean", page


@pytest.mark.acceptance
def test_every_page_that_reads_as_zeroes_is_noticed(original, tmp_path):
    for page in range(original.stat().st_size // PAGE):
        path = Path(shutil.copy(original, tmp_path / "d.db"))
        with path.open("r+b") as file:
            file.seek(page * PAGE)
            file.write(bytes(PAGE))
        assert outcome(path) != "clean", page


@pytest.mark.parametrize("flips", [40, pytest.param(220, marks=pytest.mark.acceptance)])
def test_a_flipped_bit_never_hides_behind_a_clean_verdict(original, tmp_path, flips):
    """A bit of a payload or of unused space is beyond what an audit compares; whatever it vouches for is as it was."""
    dice = random.Random(12)
    before, size = vouched(original), original.stat().st_size
    outcomes: dict[str, int] = {}
    for _ in range(flips):
        path = Path(shutil.copy(original, tmp_path / "d.db"))
        content = bytearray(path.read_bytes())
        place = dice.randrange(size)
        content[place] ^= 1 << dice.randrange(8)
        path.write_bytes(content)
        found = outcome(path)
        outcomes[found] = outcomes.get(found, 0) + 1
        if found == "clean":
            assert vouched(path) == before, place
    if flips > 200:  # fewer flips may all hit what no audit compares
        assert outcomes.get("reported", 0) > flips // 11, outcomes

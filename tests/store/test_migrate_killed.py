"""Migrations killed with SIGKILL at every statement: nothing half done is left, and the next start finishes the job."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from keptwork.store import open_store
from keptwork.store.migrations import newest
from tests.store.hands import PostgresHand, SqliteHand
from tests.store.schemas import history, is_empty, picture
from tests.store.walk import walk

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
AT_ONCE = 8


def killed_at(mode: str, url: str, every: int) -> list[int]:
    """After how many statements processes were killed, none of which has lived. The last has, and is among them."""
    argv = [sys.executable, "-m", "tests.store.migration_victim", mode, url, str(every)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=1500)
    ends = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert ends[-1][1] == 0, done.stderr
    assert {end for _, end in ends[:-1]} == {-9}
    return [number for number, _ in ends]


def finish(urls: list[str]) -> None:
    """An ordinary start on what is left, and one job on it; several at a time, because most of it is waiting."""

    async def one(url: str) -> None:
        store = await open_store(url, migrate=True)
        await walk(store)
        await store.close()

    async def all_of_them() -> None:
        for first in range(0, len(urls), AT_ONCE):
            await asyncio.gather(*map(one, urls[first : first + AT_ONCE]))

    asyncio.run(all_of_them())


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.chaos)])
class TestSqlite:
    def test_a_file_left_at_any_statement_is_as_before_or_after_a_migration_and_is_finished(self, tmp_path, every):
        finish([f"sqlite:///{tmp_path}/undisturbed.db"])
        undisturbed = self.schema(tmp_path / "undisturbed.db")
        killed = killed_at("after", f"sqlite:///{tmp_path}/{{k}}.db", every)
        assert killed[-1] > len(undisturbed[0])
        paths = [tmp_path / f"{k:03}.db" for k in killed]
        left = [self.applied(path) for path in paths]
        finish([f"sqlite:///{path}" for path in paths])
        assert [path.name for path in paths if self.schema(path) != undisturbed] == []
        assert left == sorted(left)
        assert set(left) == set(range(newest() + 1)) or (every > 1 and len(set(left)) > newest() // 2)

    def schema(self, path: Path) -> tuple[list[str], list[tuple[int, str]]]:
        hand = SqliteHand(str(path))
        found = picture(hand), history(hand)
        hand.close()
        return found

    def applied(self, path: Path) -> int:
        """The migrations a killed process left behind; without a single one there must be no table at all."""
        hand = SqliteHand(str(path))
        number = 0 if is_empty(hand) else history(hand)[-1][0]
        hand.close()
        return number


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("mode", "every"),
    [
        ("after", 13),
        pytest.param("after", 1, marks=pytest.mark.chaos),
        pytest.param("during", 1, marks=pytest.mark.chaos),
    ],
)
class TestPostgres:
    """Each victim has a schema of its own."""

    def test_a_schema_left_at_any_statement_is_as_before_or_after_a_migration_and_is_finished(
        self, postgres_url, mode, every
    ):
        hand = PostgresHand(postgres_url)
        finish([f"{postgres_url}?search_path=undisturbed"])
        undisturbed = self.schema(hand, "undisturbed")
        killed = killed_at(mode, f"{postgres_url}?search_path=k{{k}}", every)
        assert killed[-1] > 100
        schemas = [f"k{k:03}" for k in killed]
        left = {schema: self.applied(hand, schema) for schema in schemas}
        assert list(left.values()) == sorted(left.values())
        assert set(left.values()) == set(range(newest() + 1)) or (every > 1 and len(set(left.values())) > newest() // 2)
        assert len({str(self.schema(hand, schema)) for schema in schemas if left[schema] == 1}) <= 1
        finish([f"{postgres_url}?search_path={schema}" for schema in schemas])
        assert [schema for schema in schemas if self.schema(hand, schema) != undisturbed] == []
        hand.close()

    def schema(self, hand: PostgresHand, schema: str) -> tuple[list[str], list[tuple[int, str]]]:
        return picture(hand, schema), history(hand, schema)

    def applied(self, hand: PostgresHand, schema: str) -> int:
        """The migrations a killed process left behind; without a single one there must be nothing at all."""
        return 0 if is_empty(hand, schema) else history(hand, schema)[-1][0]

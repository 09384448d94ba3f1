"""A database with work in it, to be spoilt; a folder with flow files, to be run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.flow_stage import Stage
from tests.cli.refusals import populate


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "keptwork.db"
    populate(f"sqlite:///{path}")
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "keptwork.db"))


@pytest.fixture
def stage(tmp_path: Path, database_url: str) -> Iterator[Stage]:
    stage = Stage(tmp_path, database_url)
    yield stage
    stage.close()


@pytest.fixture
def here(tmp_path: Path, sqlite_url: str) -> Iterator[Stage]:
    """On SQLite alone, for what no database has a part in."""
    stage = Stage(tmp_path, sqlite_url)
    yield stage
    stage.close()

"""A database with work in it, to be spoilt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.refusals import populate


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "detent.db"
    populate(f"sqlite:///{path}")
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "detent.db"))

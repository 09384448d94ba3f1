"""`keptwork work --server`: what it refuses, in one line. That it works is tested where it is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import command

SHOP = "from keptwork import Keptwork\n\napp = Keptwork()\n"
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    return tmp_path


def refused(folder: Path, *options: str, **environment: Any) -> tuple[int, str]:
    done = command.run("work", "shop:app", *options, cwd=folder, **environment)
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("*.db")), "it has made a database"
    return done.returncode, done.stderr


def test_a_worker_has_a_database_or_a_server(folder: Path) -> None:
    code, said = refused(folder, "--server", NOWHERE, "--db", "sqlite:///other.db", KEPTWORK_KEY="kw_x")
    assert (code, "not both" in said) == (2, True)


def test_a_worker_for_a_server_needs_a_key(folder: Path) -> None:
    code, said = refused(folder, "--server", NOWHERE)
    assert (code, "KEPTWORK_KEY" in said) == (2, True)


def test_a_key_file_that_others_can_read_is_not_used(folder: Path) -> None:
    (folder / "key").write_text("kw_secret", "utf-8")
    (folder / "key").chmod(0o644)
    code, said = refused(folder, "--server", NOWHERE, "--key-file", str(folder / "key"))
    assert (code, "chmod 600" in said, "kw_secret" in said) == (2, True, False)


def test_a_server_that_is_not_there_is_said_in_one_line(folder: Path) -> None:
    code, said = refused(folder, "--server", NOWHERE, KEPTWORK_KEY="kw_x")
    assert (code, NOWHERE in said, "kw_x" in said) == (1, True, False)


def test_what_only_a_worker_with_a_database_can_do_is_refused(folder: Path) -> None:
    code, said = refused(folder, "--server", NOWHERE, "--max-memory", "1GiB", KEPTWORK_KEY="kw_x")
    assert (code, "--server" in said) == (2, True)

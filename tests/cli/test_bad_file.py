"""A place or a file that cannot be the database: one line that says what and what to do, and nothing changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import apsw
import pytest

from keptwork.errors import SqliteTooOld
from keptwork.store.migrations import newest
from keptwork.store.sqlite.file import require_version
from tests.cli.refusals import ALL, READS, contents, refused
from tests.support.command import Done, run

NOBODY = 65534


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_reading_makes_no_database(command, tmp_path):
    refused(
        run(*command, cwd=tmp_path),
        2,
        "no database sqlite:///keptwork.db",
        "keptwork migrate --db sqlite:///keptwork.db",
    )
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_an_empty_file_stays_empty_when_it_is_read(command, tmp_path):
    (tmp_path / "keptwork.db").touch()
    refused(run(*command, cwd=tmp_path), 2, "no database sqlite:///keptwork.db", "keptwork migrate")
    assert contents(tmp_path) == {str(tmp_path / "keptwork.db"): b""}


@pytest.mark.parametrize("command", [("migrate",), ("demo",)], ids=" ".join)
def test_a_folder_that_does_not_exist(command, tmp_path):
    done = run(*command, "--db", f"sqlite:///{tmp_path}/not/there/keptwork.db")
    refused(done, 1, f"the folder {tmp_path}/not/there does not exist", "--db or KEPTWORK_DB")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("command", [*READS, ("migrate",), ("demo",)], ids=" ".join)
def test_a_path_that_is_a_folder(command, tmp_path):
    refused(run(*command, "--db", f"sqlite:///{tmp_path}"), 1, str(tmp_path), "it is a folder", "--db or KEPTWORK_DB")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("command", [*READS, ("migrate",), ("demo",)], ids=" ".join)
def test_a_path_through_a_file(command, tmp_path):
    (tmp_path / "file").write_text("x")
    done = run(*command, "--db", f"sqlite:///{tmp_path}/file/keptwork.db")
    refused(done, 2 if command in READS else 1, f"{tmp_path}/file")
    assert contents(tmp_path) == {str(tmp_path / "file"): b"x"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an ordinary user can reach; pytest's own are private to who runs the tests."""
    folder = Path(mkdtemp(prefix="keptwork-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


AS_NOBODY = f"""
import contextlib, io, os, sys
import keptwork.cli.demo, keptwork.cli.events
import keptwork.cli.migrate, keptwork.store.sqlite.store
from keptwork.cli import main
for command in (["migrate", "--sql"], ["events", "list"], ["audit", "verify"], ["audit", "export"]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main._outcome([*command, "--db", "sqlite://:memory:"])
main.screen.stdout.cache_clear(), main.screen.stderr.cache_clear()
if os.getuid() == 0:
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
os.chdir("/")
main.run(sys.argv[1:])
"""


def run_as_nobody(*arguments: str) -> Done:
    """Root may write anywhere, so root's tests become an ordinary user; not before every module has been used once,
    for the project and Python itself may lie where that user cannot read."""
    return run(*arguments, python=("-c", AS_NOBODY))


@pytest.mark.acceptance
@pytest.mark.parametrize("command", [("migrate",), ("demo",)], ids=" ".join)
def test_a_read_only_folder(command, open_folder):
    open_folder.chmod(0o555)
    done = run_as_nobody(*command, "--db", f"sqlite:///{open_folder}/keptwork.db")
    refused(done, 1, f"the folder {open_folder} is not writable", "choose a folder you may write to")
    assert contents(open_folder) == {}


@pytest.mark.acceptance
@pytest.mark.parametrize("command", [*READS, ("migrate",), ("demo",)], ids=" ".join)
def test_a_database_in_a_read_only_folder(command, open_folder, original):
    shutil.copy(original, open_folder / "keptwork.db")
    before = contents(open_folder)
    (open_folder / "keptwork.db").chmod(0o444)
    open_folder.chmod(0o555)
    done = run_as_nobody(*command, "--db", f"sqlite:///{open_folder}/keptwork.db")
    refused(done, 1, str(open_folder), "not writable", "choose a folder you may write to")
    assert contents(open_folder) == before


@pytest.fixture
def read_only_file(open_folder: Path, original: Path) -> Path:
    target = Path(shutil.copy(original, open_folder / "keptwork.db"))
    target.chmod(0o444)
    open_folder.chmod(0o777)
    return target


@pytest.mark.acceptance
def test_a_read_only_file_is_not_written_to(read_only_file):
    before = read_only_file.read_bytes()
    done = run_as_nobody("demo", "--db", f"sqlite:///{read_only_file}")
    refused(done, 1, str(read_only_file), "it is not writable", "--db or KEPTWORK_DB")
    assert read_only_file.read_bytes() == before


@pytest.mark.acceptance
@pytest.mark.parametrize("command", [("events", "list"), ("audit", "verify"), ("audit", "export")], ids=" ".join)
def test_a_read_only_file_can_be_read(command, read_only_file, original):
    done = run_as_nobody(*command, "--json", "--db", f"sqlite:///{read_only_file}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(*command, "--json", "--db", f"sqlite:///{original}").stdout


@pytest.mark.acceptance
@pytest.mark.parametrize("command", [*READS, ("migrate",)], ids=" ".join)
def test_a_folder_that_may_not_be_entered(command, open_folder, original):
    shutil.copy(original, open_folder / "keptwork.db")
    open_folder.chmod(0o600)
    refused(run_as_nobody(*command, "--db", f"sqlite:///{open_folder}/keptwork.db"), 1, str(open_folder), "--db")


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_file_that_is_not_a_database(command, tmp_path):
    (tmp_path / "keptwork.db").write_text("Dear diary,\n" * 1000)
    before = contents(tmp_path)
    done = run(*command, "--db", f"sqlite:///{tmp_path}/keptwork.db")
    refused(done, 1, "is not a SQLite database", "left untouched", "Choose another file")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_somebody_elses_sqlite_database(command, tmp_path):
    db = apsw.Connection(str(tmp_path / "keptwork.db"))
    db.execute("CREATE TABLE jobs (name TEXT); INSERT INTO jobs VALUES ('astronaut')")
    db.close()
    before = contents(tmp_path)
    done = run(*command, "--db", f"sqlite:///{tmp_path}/keptwork.db")
    refused(done, 1, "another program", "left untouched", "Choose another")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_newer_database(command, copy):
    db = apsw.Connection(str(copy))
    db.execute("INSERT INTO keptwork_migrations (number, name, applied_at) VALUES (99, 'later', 0)")
    db.close()
    before = copy.read_bytes()
    done = run(*command, "--db", f"sqlite:///{copy}")
    refused(done, 2, "has schema 99", f"newer than the {newest()}", "upgrade Keptwork", "Nothing was changed")
    assert copy.read_bytes() == before


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_a_database_that_is_behind(command, copy):
    db = apsw.Connection(str(copy))
    db.execute("DELETE FROM keptwork_migrations WHERE number > 1")
    db.close()
    before = copy.read_bytes()
    refused(run(*command, "--db", f"sqlite:///{copy}"), 2, "has schema 1", "run: keptwork migrate")
    assert copy.read_bytes() == before


PATCHED = (
    "import sys, apsw; apsw.sqlite_lib_version = lambda: '3.40.1'; from keptwork.cli.main import run; run(sys.argv[1:])"
)


@pytest.mark.acceptance
@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_too_old_sqlite(command, copy):
    before = copy.read_bytes()
    done = run(*command, "--db", f"sqlite:///{copy}", python=("-c", PATCHED))
    refused(done, 1, "SQLite 3.40.1 is too old", "3.51.3 or newer", "pip install --force-reinstall apsw")
    assert copy.read_bytes() == before


@pytest.mark.parametrize("found", ["3.40.1", "3.51.2", "3.9.9", "3.7.0"])
def test_every_sqlite_that_can_damage_a_file_is_too_old(found):
    with pytest.raises(SqliteTooOld, match=f"SQLite {found} is too old"):
        require_version(found)


@pytest.mark.parametrize("found", ["3.51.3", "3.52.0", "4.0.0"])
def test_a_new_enough_sqlite_is_taken(found):
    require_version(found)
